"""C text to a loaded library: find a C compiler, compile each text once per machine, link, load.

The idea: an object is known by the sha256 of its text, the compiler, the flags and the processor,
so that it is compiled once and found by every later Program that shares the kernel; the texts that
are new are compiled side by side, one process a core.
This module does not know what the C computes; it alone reads the environment (CC, TILEWRIGHT_CACHE,
TILEWRIGHT_CACHE_MIB, XDG_CACHE_HOME).
"""

import ctypes
import functools
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.base.errors import OptionError, ToolchainError
from tilewright.runtime.cache import Cache
from tilewright.runtime.target import NATIVE, check_target

FLAGS = (
    "-std=gnu11",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    # Nothing reads errno or floating-point traps.  NaN, infinities and signed zeros stay as the
    # text says, and so does rounding: a product and a sum are fused only where the text says fma.
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fopenmp-simd",
    # Integers wrap as torch's do; vectors are read from memory declared as scalars.
    "-fwrapv",
    "-fno-strict-aliasing",
    "-w",
)
# Compilers hold back from 64-byte vectors, for fear of lower clocks; whole programs of them gain.
# GCC 12.2 that holds back, as for Intel's processors, reads a row's last lanes without their mask.
WIDE_VECTORS = "-mprefer-vector-width=512"  # of x86
# GCC merges turns of an outer loop with one another, and then gathers rows that lie together.
AS_WRITTEN = "-fno-loop-unroll-and-jam"
GCC = "Free Software Foundation"  # what it says of itself; clang knows no AS_WRITTEN
LINK_FLAGS = ("-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-z,now")
LIBRARIES = ("-lm",)
NAMES = ("cc", "gcc", "clang")
INSTALL = "install gcc or clang (or `pip install ziglang`), or set CC to a C compiler"
CAUSE = re.compile(r":(\d+):(?:\d+:)? (?:fatal )?error: (.*)")
CACHE_FORMAT = "1"
CACHE_MIB = 1024
"""How much is kept where nobody says."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A C compiler: how it is called, what it says it is, its flags, and where its work is kept.

    started: by the keys of objects, what is being compiled already (`runtime/ahead.py`).
    """

    command: tuple[str, ...]
    identity: str
    flags: tuple[str, ...]
    cache: Cache
    started: Mapping[str, Future[bytes]] = field(default_factory=dict, compare=False)

    def key(self, *parts: str) -> str:
        """Return the cache key of what this compiler makes from the parts."""
        ours = (CACHE_FORMAT, *self.command, self.identity, *self.flags, processor())
        total = _digest(ours).copy()
        _add(total, parts)
        return total.hexdigest()

    def has(self, text: str) -> bool:
        """Say whether the cache seems to have the object of a text."""
        return self.cache.place(self.key("object", text)).exists()


@functools.lru_cache
def _digest(parts: tuple[str, ...]) -> "hashlib._Hash":
    """Return a digest so far: of what stands before all that one compiler makes."""
    total = hashlib.sha256()
    _add(total, parts)
    return total


def _add(total: "hashlib._Hash", parts: Sequence[str]) -> None:
    for part in parts:
        total.update(f"{len(part)}:".encode())
        total.update(part.encode("utf-8", "surrogateescape"))


def find_toolchain(target: str = NATIVE) -> Toolchain:
    """Return the compiler that CC names, else cc, gcc, clang or the ziglang wheel's.

    target: the instruction set that it compiles for, one of TARGETS.  Raises OptionError where
    this processor would not run that.
    """
    check_target(target, processor())
    return _toolchain(
        target or "native",
        os.environ.get("CC", ""),
        os.environ.get("PATH", ""),
        str(cache_folder()),
        cache_bytes(),
    )


def cache_folder() -> Path:
    """Return TILEWRIGHT_CACHE, else the folder `tilewright` where the user's caches are."""
    chosen = os.environ.get("TILEWRIGHT_CACHE", "")
    if chosen:
        return Path(chosen)
    caches = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(caches) if caches else Path("~/.cache").expanduser()) / "tilewright"


def cache_bytes() -> int:
    """Return how many bytes of kernels are kept, and how many of Programs: for each half of
    TILEWRIGHT_CACHE_MIB, else of CACHE_MIB; what was asked for longest ago is removed first.

    Raises OptionError where that is no whole number.
    """
    chosen = os.environ.get("TILEWRIGHT_CACHE_MIB", "").strip()
    if chosen and not re.fullmatch("[0-9]{1,9}", chosen):
        raise OptionError(
            f"TILEWRIGHT_CACHE_MIB={chosen!r} is no number of MiB",
            expected="a whole number; 0 to keep nothing",
            found=f"{chosen!r}",
            mend=f"unset it for {CACHE_MIB}",
        )
    return (int(chosen) if chosen else CACHE_MIB) << 19


def build(toolchain: Toolchain, texts: Mapping[str, str]) -> ctypes.CDLL:
    """Return a library made from the C texts, compiling those that no cache has."""
    keys = {name: toolchain.key("object", text) for name, text in texts.items()}
    key = toolchain.key("library", *LINK_FLAGS, *LIBRARIES, *keys.values())
    library = toolchain.cache.get(key)
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        if library is None:
            objects = _objects(toolchain, texts, keys, Path(folder))
            library = _link(toolchain, objects, Path(folder))
            toolchain.cache.put(key, library)
        return _load(library, Path(folder))


# ---- finding ------------------------------------------------------------------------------------


@functools.lru_cache
def _toolchain(target: str, cc: str, path: str, cache: str, most: int) -> Toolchain:
    command = shlex.split(cc) if cc.strip() else _first_compiler(path)
    identity = identity_of(command)
    flags = flags_for(identity, target)
    if "ziglang" in command:
        flags = (*flags, "-fno-sanitize=undefined")
    return Toolchain(tuple(command), identity, flags, Cache(Path(cache), most))


def flags_for(identity: str, target: str) -> tuple[str, ...]:
    """Return what a compiler that says this of itself is told, for an instruction set."""
    flags: tuple[str, ...] = (*FLAGS, f"-march={target}")
    if platform.machine() in ("x86_64", "AMD64"):
        flags = (*flags, WIDE_VECTORS)
    return (*flags, AS_WRITTEN) if GCC in identity else flags


def _first_compiler(path: str) -> list[str]:
    for name in NAMES:
        found = shutil.which(name, path=path)
        if found:
            return [found]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    raise ToolchainError(
        "there is no C compiler",
        expected="CC, or one of " + ", ".join(NAMES) + ", or the ziglang package",
        found="none of them",
        mend=INSTALL,
    )


def identity_of(command: Sequence[str]) -> str:
    """Return what the compiler says of itself."""
    try:
        done = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, check=True, errors="replace"
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise ToolchainError(
            "the C compiler does not run",
            expected=f"`{shlex.join(command)} --version` to succeed",
            found=str(error),
            mend=INSTALL,
        ) from error
    return done.stdout


@functools.lru_cache
def processor() -> str:
    """Return the maker, the name and the abilities of the processor, as far as the system tells."""
    told = [platform.machine()]
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return f"{told[0]} {platform.processor()}"
    for wanted in ("vendor_id", "model name", "flags", "Features"):
        told += [line for line in lines if line.startswith(wanted)][:1]
    return "\n".join(told)


# ---- compiling ----------------------------------------------------------------------------------


def _objects(
    toolchain: Toolchain, texts: Mapping[str, str], keys: Mapping[str, str], folder: Path
) -> list[Path]:
    """Put an object file for each text into the folder; return them in order."""
    jobs: dict[str, Callable[[], bytes]] = {}
    with compilers() as pool:
        # The longest first, so that no core waits for the last.
        for name in sorted(texts, key=lambda name: -len(texts[name])):
            job = toolchain.started.get(keys[name])
            jobs[name] = (job or pool.submit(compiled, toolchain, name, texts[name])).result
        places = [folder / f"{i}.o" for i in range(len(texts))]
        for place, name in zip(places, texts, strict=True):
            place.write_bytes(jobs[name]())
    return places


def compilers() -> ThreadPoolExecutor:
    """Return what compiles side by side, one process a core."""
    return ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0)))


def compiled(toolchain: Toolchain, name: str, text: str) -> bytes:
    """Return the object of a C text: as a cache has it, else made now; what another thread makes
    is waited for.

    Raises ToolchainError, with the name, where the compiler refuses it.
    """
    key = toolchain.key("object", text)
    # A child of a fork has not the threads that its parent waits for.
    place = (os.getpid(), toolchain.cache.folder, key)
    mine: Future[bytes] = Future()
    job = _UNDERWAY.setdefault(place, mine)
    if job is mine:
        try:
            mine.set_result(_object(toolchain, key, name, text))
        except BaseException as error:
            mine.set_exception(error)
        finally:
            del _UNDERWAY[place]
    return job.result()


_UNDERWAY: dict[tuple[int, Path, str], Future[bytes]] = {}
"""What threads of this process are making now."""


def _object(toolchain: Toolchain, key: str, name: str, text: str) -> bytes:
    entry = toolchain.cache.get(key)
    if entry is None:
        with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
            place = Path(folder) / "object.o"
            _compile(toolchain, name, text, place)
            entry = place.read_bytes()
        toolchain.cache.put(key, entry)
    return entry


def _compile(toolchain: Toolchain, name: str, text: str, place: Path) -> None:
    source = place.with_suffix(".c")
    source.write_text(text, encoding="utf-8")
    done = _run(toolchain, [*toolchain.flags, "-c", source.name, "-o", place.name], place.parent)
    if done.returncode:
        raise _compile_error(toolchain, name, text, done.stderr)


def _compile_error(toolchain: Toolchain, name: str, text: str, said: str) -> ToolchainError:
    match = CAUSE.search(said)
    if match is None:
        return ToolchainError(
            f"the C compiler fails on {name}",
            found=said.strip()[:2000],
            known=toolchain.identity.split("\n")[0],
        )
    number = int(match.group(1))
    lines = text.split("\n")
    code = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    return ToolchainError(
        f"the C compiler refuses {name}",
        found=match.group(2),
        known=toolchain.identity.split("\n")[0],
        where=f"line {number} of {name}   {code}",
    )


def _link(toolchain: Toolchain, objects: Sequence[Path], folder: Path) -> bytes:
    # The names go through a file: there may be more of them than a command line takes.
    (folder / "objects").write_text("\n".join(item.name for item in objects), encoding="utf-8")
    arguments = [*LINK_FLAGS, "-o", "linked.so", "@objects", *LIBRARIES]
    done = _run(toolchain, arguments, folder)
    if done.returncode:
        raise ToolchainError(
            "the linker refuses the kernels of a program",
            found=done.stderr.strip()[:2000],
            known=toolchain.identity.split("\n")[0],
        )
    return (folder / "linked.so").read_bytes()


def _run(
    toolchain: Toolchain, arguments: Sequence[str], folder: Path
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [*toolchain.command, *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise ToolchainError(
            "the C compiler does not run",
            expected=f"`{shlex.join(toolchain.command)}` to start",
            found=str(error),
            mend=INSTALL,
        ) from error


def _load(library: bytes, folder: Path) -> ctypes.CDLL:
    place = folder / "program.so"
    place.write_bytes(library)
    try:
        return ctypes.CDLL(str(place))
    except OSError as error:
        raise ToolchainError(
            "the kernels of a program cannot be loaded",
            found=str(error),
            mend="set TMPDIR to a folder whose files may be executed",
        ) from error
