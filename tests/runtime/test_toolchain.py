"""Kernels are compiled once; what can go wrong with compiler and cache is said, or survived."""

import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilewright.base.errors import CacheWarning, ToolchainError
from tilewright.program import Buffer, Input, Launch, Program, Segment, show, whole
from tilewright.runtime import Executable, Toolchain, find_toolchain
from tilewright.runtime import toolchain as module
from tilewright.runtime.cache import SUM_BYTES, Cache, trim

from .programs import chain, f32, kernel


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "cache"
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(folder))
    yield folder
    module._toolchain.cache_clear()


def ran(program: Program) -> bool:
    x = np.arange(100, dtype=np.float32)
    return bool((Executable(program).run_arrays([x])[0] == x[::-1] + 3).all())


PROGRAM = chain(3, 100, 2)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is compiled from here on, and "link"."""
    seen: list[str] = []
    compile_, link = module._compile, module._link

    def watched_compile(toolchain: Toolchain, name: str, text: str, place: Path) -> None:
        seen.append(name)
        compile_(toolchain, name, text, place)

    def watched_link(toolchain: Toolchain, objects: Sequence[Path], folder: Path) -> bytes:
        seen.append("link")
        return link(toolchain, objects, folder)

    monkeypatch.setattr(module, "_compile", watched_compile)
    monkeypatch.setattr(module, "_link", watched_link)
    return seen


def test_a_kernel_is_compiled_once(cache: Path, compilations: list[str]) -> None:
    assert ran(PROGRAM)
    assert sorted(compilations) == [
        "kernel shift", "link", "segments.c", "the tables of a program",
    ]  # fmt: skip
    compilations.clear()
    assert ran(PROGRAM)
    assert compilations == []
    # Another Program with the same kernel: only its tables are new.
    program = chain(3, 100, 1)
    assert ran(program)
    assert compilations == ["the tables of a program", "link"]
    assert sum(1 for path in cache.rglob("*") if path.is_file()) == 6


def test_another_process_finds_what_this_one_compiled(cache: Path) -> None:
    assert ran(PROGRAM)
    before = {path: path.stat().st_ino for path in cache.rglob("*") if path.is_file()}
    script = (
        "import sys, numpy as np\n"
        "from tilewright.program import read\n"
        "from tilewright.runtime import toolchain, Executable\n"
        "toolchain._compile = toolchain._link = None\n"
        "x = np.arange(100, dtype=np.float32)\n"
        "assert (Executable(read(sys.stdin.read())).run_arrays([x])[0] == x[::-1] + 3).all()\n"
    )
    subprocess.run([sys.executable, "-c", script], input=show(PROGRAM), text=True, check=True)
    after = {path: path.stat().st_ino for path in cache.rglob("*") if path.is_file()}
    assert before == after


def test_damaged_entries_are_compiled_again(cache: Path, compilations: list[str]) -> None:
    assert ran(PROGRAM)
    generator = np.random.default_rng(0)
    for damage in range(8):
        for path in [path for path in cache.rglob("*") if path.is_file()]:
            content = bytearray(path.read_bytes())
            if damage % 4 == 0:
                content = content[: int(generator.integers(len(content)))]
            elif damage % 4 == 1:
                content[int(generator.integers(len(content)))] ^= 1
            elif damage % 4 == 2:
                content = bytearray()
            else:
                content += b"more"
            path.write_bytes(content)
        compilations.clear()
        assert ran(PROGRAM)
        assert len(compilations) == 4
        compilations.clear()
        assert ran(PROGRAM)
        assert compilations == []


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilations: list[str]
) -> None:
    (tmp_path / "file").write_text("here is no folder")
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(CacheWarning, match="cannot be written") as caught:
        assert ran(PROGRAM)
    assert len(caught) == 1
    compilations.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ran(PROGRAM)
    assert compilations == [], "what this process compiled it keeps"
    assert (tmp_path / "file").read_text() == "here is no folder"


def test_no_compiler_is_said_with_the_mend(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ToolchainError) as raised:
        ran(PROGRAM)
    assert str(raised.value) == (
        "there is no C compiler\n"
        "  expected  CC, or one of cc, gcc, clang, or the ziglang package\n"
        "  found     none of them\n"
        "  mend      install gcc or clang (or `pip install ziglang`), or set CC to a C compiler"
    )
    assert not cache.exists()


@pytest.mark.parametrize("command", ["/no/such/compiler", "false"])
def test_a_compiler_that_does_not_run_is_said(
    cache: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", command)
    with pytest.raises(ToolchainError, match="the C compiler does not run") as raised:
        ran(PROGRAM)
    assert f"`{command} --version` to succeed" in raised.value.expected
    assert not cache.exists()


def test_cc_may_have_arguments(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", f"{shutil.which('cc')} -DANY=1")
    assert ran(PROGRAM)
    assert find_toolchain().command == (shutil.which("cc"), "-DANY=1")
    assert cache.exists()


def test_a_kernel_that_does_not_compile_is_shown_with_its_line(cache: Path) -> None:
    bad = kernel("shift", "  float y = 1.0f;\n  return nonsense(y) +;")
    with pytest.raises(ToolchainError) as raised:
        ran(replace(PROGRAM, kernels=(bad,)))
    assert raised.value.summary == "the C compiler refuses kernel shift"
    assert raised.value.where == "line 3 of kernel shift   return nonsense(y) +;"
    assert "expected expression" in raised.value.found
    objects = [path for path in cache.rglob("*") if path.is_file()]
    assert len(objects) <= 2, "what is sound is kept, nothing of the library"


def test_a_kernel_that_needs_what_is_not_there_is_refused(cache: Path) -> None:
    bad = kernel("shift", "  extern int nowhere(void);\n  return nowhere();")
    with pytest.raises(ToolchainError, match="cannot be loaded") as raised:
        ran(replace(PROGRAM, kernels=(bad,)))
    assert "nowhere" in raised.value.found
    assert cache.exists()


def test_kernels_do_not_see_functions_of_the_process(cache: Path) -> None:
    """A kernel may be called as a function of C's own is, and each Program has its own."""
    results = []
    for value in (1, 2):
        own = kernel("exp", f"  ((float *)p[1])[0] = {value};\n  return 0;")
        x, y = Buffer("x", f32(1), "input"), Buffer("y", f32(1), "output")
        program = Program(
            "own", (x, y), (own,), (Segment((Launch("exp", (whole(x),), (whole(y),)),)),),
            (Input("x"),), (whole(y),),
        )  # fmt: skip
        results.append(Executable(program))
    x0 = np.zeros(1, np.float32)
    assert [float(item.run_arrays([x0])[0][0]) for item in results] == [1, 2]
    assert cache.exists()


def test_special_values_stay_what_they_are(cache: Path) -> None:
    """NaN, infinities, signed zeros, rounding of products: the flags keep all of them."""
    body = (
        "  const float *a = (const float *)p[0], *b = (const float *)p[1];\n"
        "  float *y = (float *)p[2];\n"
        "  for (int i = 0; i < 64; i++) {\n"
        "    y[i] = a[i] + 0.0f;\n    y[64 + i] = a[i] * 0.0f;\n    y[128 + i] = a[i] - a[i];\n"
        "    y[192 + i] = a[i] != a[i];\n    y[256 + i] = a[i] > b[i] ? a[i] : b[i];\n"
        "    y[320 + i] = a[i] * b[i] - a[i] * b[i];\n    y[384 + i] = a[i] / b[i];\n"
        "    y[448 + i] = (a[i] + b[i]) - b[i];\n  }\n  return 0;"
    )
    a, b = (Buffer(name, f32(64), "input") for name in "ab")
    y = Buffer("y", f32(512), "output")
    launch = Launch("special", (whole(a), whole(b)), (whole(y),))
    program = Program(
        "special", (a, b, y), (kernel("special", body),), (Segment((launch,)),),
        (Input("a"), Input("b")), (whole(y),),
    )  # fmt: skip
    special = [0.0, -0.0, 1.0, -1.5, 3.3e38, 1e-40, np.inf, -np.inf, np.nan]
    rng = np.random.default_rng(0)
    u, v = (rng.choice(special, 64).astype(np.float32) for _ in range(2))
    u[:8], v[:8] = rng.normal(size=8), rng.normal(size=8)
    (found,) = Executable(program).run_arrays([u, v])
    with np.errstate(all="ignore"):
        zero = np.float32(0)
        expected = np.concatenate([
            u + zero, u * zero, u - u, u != u, np.where(u > v, u, v), u * v - u * v, u / v,
            (u + v) - v,
        ]).astype(np.float32)  # fmt: skip
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    same = ~np.isnan(expected)
    assert found[same].tobytes() == expected[same].tobytes()
    assert cache.exists()


def test_processes_may_share_a_cache(tmp_path: Path) -> None:
    """Many writers of one key: every reader sees a whole entry or none."""
    place = Cache(tmp_path)
    key = "ab" * 32
    entries = [bytes([i]) * 100_000 for i in range(4)]
    children = []
    script = (
        "import sys\nfrom pathlib import Path\nfrom tilewright.runtime.cache import Cache\n"
        "folder, key, byte = sys.argv[1:]\n"
        "for _ in range(100): Cache(Path(folder)).put(key, bytes([int(byte)]) * 100_000)\n"
    )
    for i in range(4):
        command = [sys.executable, "-c", script, str(tmp_path), key, str(i)]
        children.append(subprocess.Popen(command))
    while any(child.poll() is None for child in children):
        assert place.get(key) in (None, *entries)
    assert all(child.returncode == 0 for child in children)
    assert place.get(key) in entries
    assert [path.name for path in place.place(key).parent.iterdir()] == [key[2:]]


def _put(cache: Cache, key: str, size: int, ago: float) -> None:
    """Put an entry as it would be if it had been asked for so many seconds ago."""
    cache.put(key, bytes(size))
    then = time.time() - ago
    os.utime(cache.place(key), (then, then))


def test_what_was_asked_for_longest_ago_is_removed_from_a_cache(tmp_path: Path) -> None:
    keys = [f"{i:02x}" * 32 for i in range(10)]
    filling = Cache(tmp_path)
    for i, key in enumerate(keys):
        _put(filling, key, 100_000 - SUM_BYTES, 1000 - i)
    other = tmp_path / "tuned" / "00"
    other.mkdir(parents=True)
    (other / "00").write_bytes(bytes(1_000_000))
    bounded = Cache(tmp_path, 1_000_000)
    assert bounded.get(keys[0]) is not None  # so that it was asked for last
    bounded.put("ff" * 32, bytes(100_000 - SUM_BYTES))
    left = {key for key in keys if bounded.get(key) is not None}
    assert left == {keys[0], *keys[5:]}  # 7 of 11, less than LEFT of the bound
    assert bounded.get("ff" * 32) is not None
    assert (other / "00").exists()


def test_a_cache_within_its_bound_keeps_all(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1_000_000)
    keys = [f"{i:02x}" * 32 for i in range(10)]
    for key in keys:
        cache.put(key, bytes(100_000 - SUM_BYTES))
    assert all(cache.get(key) is not None for key in keys)


def test_a_process_that_fills_a_cache_looks_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1_000_000)
    for i in range(100):
        cache.put(f"{i:02x}" * 32, bytes(100_000))
        held = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
        assert held <= 1_000_000
    assert cache.get(f"{99:02x}" * 32) is not None


def test_files_that_others_are_writing_are_left_until_they_are_forgotten(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    written, forgotten = tmp_path / "ab" / "tmp_written", tmp_path / "ab" / "tmp_forgotten"
    for path in (written, forgotten):
        path.write_bytes(bytes(100))
    os.utime(forgotten, (0, 0))
    Cache(tmp_path, 0).put("cd" * 32, b"")
    assert written.exists()
    assert not forgotten.exists()


def test_what_cannot_be_removed_leaves_its_room_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path)
    keys = [f"{i:02x}" * 32 for i in range(4)]
    for at, key in enumerate(keys):
        cache.put(key, bytes(1000))
        os.utime(cache.place(key), (at, at))
    (tmp_path / "00" / "ab").mkdir()  # of that name, but no entry
    unlink = os.unlink

    def refusing(path: str) -> None:
        if path == str(cache.place(keys[0])):
            raise PermissionError
        unlink(path)

    monkeypatch.setattr(os, "unlink", refusing)
    trim(tmp_path, 3 * (1000 + SUM_BYTES))
    assert [cache.place(key).exists() for key in keys] == [True, False, False, True]
    assert (tmp_path / "00" / "ab").exists()


def test_processes_may_remove_what_others_are_reading(tmp_path: Path) -> None:
    """Writers above the bound: every reader sees a whole entry or none, and nobody fails."""
    script = (
        "import sys, warnings\nfrom pathlib import Path\nwarnings.simplefilter('error')\n"
        "from tilewright.runtime.cache import Cache\n"
        "folder, byte = sys.argv[1], int(sys.argv[2])\n"
        "cache = Cache(Path(folder), 300_000)\n"
        "for i in range(100): cache.put(f'{i % 8:02x}' * 32, bytes([byte]) * 50_000)\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path), str(i)]) for i in range(3)
    ]
    place = Cache(tmp_path, 300_000)
    entries = [bytes([i]) * 50_000 for i in range(3)]
    while any(child.poll() is None for child in children):
        assert all(place.get(f"{i:02x}" * 32) in (None, *entries) for i in range(8))
    assert all(child.returncode == 0 for child in children)
    trim(tmp_path, 300_000)
    held = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert 0 < held <= 300_000


def test_the_bound_of_the_caches_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.delenv("TILEWRIGHT_CACHE_MIB", raising=False)
    assert module.cache_bytes() == 512 << 20
    monkeypatch.setenv("TILEWRIGHT_CACHE_MIB", "6")
    assert module.find_toolchain().cache.most == 3 << 20
    monkeypatch.setenv("TILEWRIGHT_CACHE_MIB", "0")
    assert ran(PROGRAM)
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "/a")
    assert module.cache_folder() == Path("/a")
    monkeypatch.delenv("TILEWRIGHT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert module.cache_folder() == Path("/b/tilewright")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert module.cache_folder() == Path(os.path.expanduser("~/.cache/tilewright"))


def test_other_flags_compilers_and_texts_have_other_keys(cache: Path) -> None:
    toolchain = find_toolchain()
    keys = {
        toolchain.key("object", "a"),
        toolchain.key("object", "b"),
        toolchain.key("objecta"),
        replace(toolchain, flags=(*toolchain.flags, "-O1")).key("object", "a"),
        replace(toolchain, identity="another").key("object", "a"),
        replace(toolchain, command=("other",)).key("object", "a"),
    }
    assert len(keys) == 6
    assert not cache.exists()
