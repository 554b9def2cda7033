"""What is compiled while a Program is being made is compiled once, and waited for where it is."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilewright.base.errors import ToolchainError
from tilewright.base.interpreter import TURN
from tilewright.program import Program
from tilewright.runtime import Ahead, Executable, Toolchain
from tilewright.runtime import toolchain as module
from tilewright.runtime.ahead import begin_early

from .programs import chain, kernel

PROGRAM = chain(3, 100, 2)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of what is compiled, where no cache has anything."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    seen: list[str] = []
    compile_ = module._compile

    def watched(toolchain: Toolchain, name: str, text: str, place: Path) -> None:
        seen.append(name)
        compile_(toolchain, name, text, place)

    monkeypatch.setattr(module, "_compile", watched)
    yield seen
    module._toolchain.cache_clear()


def ran(program: Program, toolchain: Toolchain | None) -> bool:
    x = np.arange(100, dtype=np.float32)
    return bool((Executable(program, toolchain).run_arrays([x])[0] == x[::-1] + 3).all())


@pytest.mark.parametrize("kept", ["", "0"])
def test_what_has_begun_is_not_compiled_again(
    made: list[str], kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the cache keeps nothing."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_MIB", kept)
    with Ahead("") as ahead:
        for one in PROGRAM.kernels:
            ahead.begin(one)
        assert ran(PROGRAM, ahead.toolchain())
    assert sorted(made) == ["kernel shift", "segments.c", "the tables of a program"]


def test_what_is_begun_twice_is_compiled_once(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the cache keeps nothing."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_MIB", "0")
    with Ahead("") as ahead:
        for one in PROGRAM.kernels * 3:
            ahead.begin(one)
        assert ran(PROGRAM, ahead.toolchain())
    assert made.count("kernel shift") == 1


def test_what_a_cache_has_is_not_compiled_again(made: list[str]) -> None:
    assert ran(PROGRAM, None)
    made.clear()
    with Ahead("") as ahead:
        for one in PROGRAM.kernels:
            ahead.begin(one)
        assert ran(PROGRAM, ahead.toolchain())
    assert made == []


def test_a_kernel_of_the_same_name_with_another_text_is_another(made: list[str]) -> None:
    with Ahead("") as ahead:
        ahead.begin(kernel("shift", "  return 0;"))
        assert ran(PROGRAM, ahead.toolchain())
    assert made.count("kernel shift") == 2


def test_what_the_compiler_refuses_is_said_to_whoever_builds_with_it(made: list[str]) -> None:
    bad = kernel("shift", "  return nonsense +;")
    with Ahead("") as ahead:
        ahead.begin(bad)
        with pytest.raises(ToolchainError, match="refuses kernel shift"):
            ran(replace(PROGRAM, kernels=(bad,)), ahead.toolchain())
        assert ran(PROGRAM, ahead.toolchain())
    assert made.count("kernel shift") == 2


def test_a_program_that_is_never_made_leaves_what_has_begun(made: list[str]) -> None:
    def broken_off() -> None:
        with Ahead("") as ahead:
            ahead.begin(PROGRAM.kernels[0])
            raise ValueError("of the graph")

    with pytest.raises(ValueError, match="of the graph"):
        broken_off()
    assert ran(PROGRAM, None)
    assert made.count("kernel shift") <= 2


def test_no_compiler_is_looked_for_where_nothing_begins(
    made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "none"))
    with Ahead("") as ahead:
        assert ahead.toolchain() is None
    with Ahead("") as ahead, pytest.raises(ToolchainError, match="does not run"):
        ahead.begin(PROGRAM.kernels[0])
    assert made == []


@pytest.mark.parametrize("usual", [5e-3, 1e-4])
def test_turns_of_threads_are_short_meanwhile_and_then_what_they_were(usual: float) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(usual)
    try:
        usual = sys.getswitchinterval()  # in whole microseconds
        with Ahead(""):
            short = sys.getswitchinterval()
            with Ahead(""):
                assert sys.getswitchinterval() == short
            assert sys.getswitchinterval() == short <= usual
        assert sys.getswitchinterval() == usual
        assert short == pytest.approx(min(usual, TURN))
        with pytest.raises(KeyboardInterrupt), Ahead(""):
            raise KeyboardInterrupt
        assert sys.getswitchinterval() == usual
    finally:
        sys.setswitchinterval(before)


def test_of_programs_made_at_once_none_leaves_turns_short() -> None:
    before = sys.getswitchinterval()
    first, second = Ahead(""), Ahead("")
    with first:
        second.__enter__()
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == before


def test_what_another_thread_compiles_is_waited_for(made: list[str]) -> None:
    toolchain = module.find_toolchain()
    with module.compilers() as pool:
        jobs = [pool.submit(module.compiled, toolchain, "a text", "int a;") for _ in range(6)]
    assert len({job.result() for job in jobs}) == 1
    assert made == ["a text"]
    assert not module._UNDERWAY


def test_each_thread_is_told_what_the_compiler_refuses(made: list[str]) -> None:
    toolchain = module.find_toolchain()
    with module.compilers() as pool:
        jobs = [pool.submit(module.compiled, toolchain, "a text", "int a") for _ in range(4)]
    for job in jobs:
        with pytest.raises(ToolchainError, match="refuses a text"):
            job.result()
    assert set(made) == {"a text"}
    assert not module._UNDERWAY


def test_what_begins_early_is_compiled_once(made: list[str]) -> None:
    begin_early("", PROGRAM.kernels)
    assert ran(PROGRAM, None)
    begin_early("", PROGRAM.kernels)
    assert sorted(made) == ["kernel shift", "segments.c", "the tables of a program"]


def test_without_a_compiler_nothing_begins_early(
    made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "none"))
    begin_early("", PROGRAM.kernels)
    monkeypatch.delenv("CC")
    monkeypatch.setenv("TILEWRIGHT_CACHE_MIB", "0")  # keeps nothing
    begin_early("", PROGRAM.kernels)
    assert made == []
