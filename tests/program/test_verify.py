"""Every rule of the Program's grammar, broken once, is refused."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tilewright.base.errors import ProgramError
from tilewright.program import (
    Buffer,
    KernelSource,
    Launch,
    LibraryCall,
    Program,
    Segment,
    View,
    Vjp,
    contiguous,
    lifetimes,
    reach,
    verify,
    whole,
)

from .samples import EVERYTHING, SCALE, A, C, L, W, X, Y, f32

Golden = Callable[[str, str], None]


def edit(**changes: Buffer) -> Program:
    """Return the sample with some buffers replaced."""
    return replace(EVERYTHING, buffers=tuple(changes.get(b.name, b) for b in EVERYTHING.buffers))


def first(*launches: Launch) -> Program:
    """Return the sample with launches before all others."""
    return replace(EVERYTHING, instructions=(Segment(launches), *EVERYTHING.instructions))


def call(**changes: object) -> Program:
    """Return the sample with its matrix product changed."""
    before, product, *after = EVERYTHING.instructions
    assert isinstance(product, LibraryCall)
    return replace(
        EVERYTHING,
        instructions=(before, replace(product, **changes), *after),  # type: ignore[arg-type]
    )


launch = Launch("scale", (whole(X),), (whole(A),))

BROKEN = {
    "two buffers": replace(EVERYTHING, buffers=(*EVERYTHING.buffers, X)),
    "cannot be the name of a buffer": replace(
        EVERYTHING, buffers=(*EVERYTHING.buffers, Buffer("1x", f32(), "output"))
    ),
    "of no known kind": edit(a=replace(A, kind="heap", offset=0)),
    "shape of buffer 'a' is impossible": edit(a=replace(A, type=f32(4, -8), strides=(1, 1))),
    "strides of buffer 'a' do not fit": edit(a=replace(A, strides=(1, -1))),
    "impossibly large": edit(x=replace(X, strides=(1 << 47, 1 << 47))),
    "does not have the data": edit(c=replace(C, data=b"1234567")),
    "has data but is no constant": edit(x=replace(X, data=b"1")),
    "not aligned": edit(a=replace(A, offset=2)),
    "not inside the arena": edit(a=replace(A, offset=256)),
    "has an offset but is not in the arena": edit(x=replace(X, offset=64)),
    "share memory": edit(a=replace(A, offset=188)),
    "cannot be the name of a kernel": replace(EVERYTHING, kernels=(KernelSource("a b", "a b"),)),
    "is reserved": replace(EVERYTHING, kernels=(KernelSource("tilewright_run", "tilewright_run"),)),
    "two kernels": replace(EVERYTHING, kernels=EVERYTHING.kernels * 2),
    "does not define it": replace(EVERYTHING, kernels=(KernelSource("scale", "int other"),)),
    "no kernel has the name 'scale'": replace(
        EVERYTHING, kernels=(KernelSource("other", SCALE + "other"),)
    ),
    "impossible number of parts": first(replace(launch, parts=0)),
    "not its input buffers": replace(EVERYTHING, inputs=EVERYTHING.inputs[1:]),
    "updates of a program are not among": replace(EVERYTHING, updates=("x", "y")),
    "an output views arena memory": replace(EVERYTHING, outputs=(whole(A),)),
    "an output views constant memory": replace(EVERYTHING, outputs=(whole(C),)),
    "an output has a negative stride": replace(EVERYTHING, outputs=(View("y", (2,), (-1,), 1),)),
    "no buffer has the name 'q'": replace(EVERYTHING, outputs=(View("q", (), ()),)),
    "do not fit its shape": first(replace(launch, inputs=(View("x", (4,), ()),))),
    "reaches outside buffer 'x'": first(replace(launch, inputs=(View("x", (4,), (8,), 8),))),
    "reaches outside buffer 'w.1'": first(replace(launch, inputs=(View("w.1", (2,), (-1,)),))),
    "'a' is read before it is written": first(replace(launch, inputs=(whole(A),))),
    "is an output but is never written": replace(EVERYTHING, instructions=()),
    "constant 'c' is written": first(replace(launch, outputs=(whole(C),))),
    "input 'w.1' is written but is not": first(replace(launch, outputs=(whole(W),))),
    "'l' belongs to one library call": first(replace(launch, outputs=(whole(L),))),
    "allocates all of buffer 'l'": call(outputs=(View("l", (8,), (1,)),)),
    "writes buffer 'l' twice": call(outputs=(whole(L), whole(L)), results=(0, 1)),
    "written twice at once": first(replace(launch, outputs=(View("a", (4, 8), (0, 1)),))),
    "no ATen operator": call(target="os.system.default"),
    "no ATen operator with": call(target="aten.mm"),
    "nested too deep": call(args=(((((((((((((((((((1,),),),),),),),),),),),),),),),),),),)),
    "has no operand [2]": call(args=(("%", 2),)),
    "has no operand ['x']": call(args=(("%", "x"),)),
    "names no known dtype": call(args=(("dtype", "f31"),)),
    "impossible argument names": call(kwargs=(("a", 1), ("a", 2))),
    "does not say which result": call(results=(0, 1)),
    "has an operand with a negative": call(inputs=(whole(A), View("w.1", (2,), (-1,), 1))),
    "names operands it has not": call(args=(("%", 0),), vjp=Vjp((1,), (0,))),
    "names a result it has not": call(args=(("%", 0),), vjp=Vjp((0,), (-1,))),
}


@pytest.mark.parametrize("says", BROKEN)
def test_a_broken_rule_is_refused(says: str) -> None:
    with pytest.raises(ProgramError) as raised:
        verify(BROKEN[says])
    error = raised.value
    assert says in error.summary
    assert error.expected
    assert error.found
    assert error.where
    assert error.mend == "compile the model again and save it"


def test_what_every_refusal_says(golden: Golden) -> None:
    texts = []
    for program in BROKEN.values():
        with pytest.raises(ProgramError) as raised:
            verify(program)
        texts.append(str(raised.value))
    golden("broken_rules.txt", "\n\n".join(texts))


def test_the_error_names_the_line_of_the_user() -> None:
    with pytest.raises(ProgramError) as raised:
        verify(call(target="os.system.default"))
    assert raised.value.where.startswith("model.py:12")


def test_lifetimes_count_launches_and_calls() -> None:
    found = lifetimes(EVERYTHING)
    assert found == {
        "x": (0, 5), "a": (0, 1), "w.1": (1, 1), "b": (1, 3), "l": (2, 2), "g": (3, 4),
        "c": (4, 4), "y": (5, 5),
    }  # fmt: skip


def test_memory_is_shared_exactly_when_lives_do_not_overlap() -> None:
    """Against brute force: random chains of launches with random placements."""
    rng = np.random.default_rng(0)
    verdicts = set()
    for _ in range(300):
        count = int(rng.integers(2, 6))
        buffers = tuple(
            Buffer(f"a{i}", f32(int(rng.integers(0, 4))), "arena", offset=4 * int(rng.integers(8)))
            for i in range(count)
        )
        launches = [Launch("scale", (), (whole(buffers[0]),))]
        for i in range(1, count):
            source = buffers[int(rng.integers(0, i))]
            launches.append(Launch("scale", (whole(source),), (whole(buffers[i]),)))
        program = Program(
            "p", buffers, (KernelSource("scale", SCALE),), (Segment(tuple(launches)),), (), (),
            arena_bytes=64,
        )  # fmt: skip
        lives = lifetimes(program)
        clash = any(
            max(lives[a.name][0], lives[b.name][0]) <= min(lives[a.name][1], lives[b.name][1])
            and set(range(a.offset, a.offset + a.bytes)) & set(range(b.offset, b.offset + b.bytes))
            for a in buffers
            for b in buffers
            if a.name < b.name
        )
        verdicts.add(clash)
        if clash:
            with pytest.raises(ProgramError, match="share memory"):
                verify(program)
        else:
            verify(program)
    assert verdicts == {True, False}


def test_reach_is_what_numpy_touches() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        shape = tuple(int(n) for n in rng.integers(0, 4, size=rng.integers(0, 4)))
        strides = tuple(int(s) for s in rng.integers(-3, 4, size=len(shape)))
        places = [sum(i * s for i, s in zip(at, strides, strict=True)) for at in np.ndindex(shape)]
        expected = (min(places), max(places) + 1) if places else (0, 0)
        assert reach(shape, strides) == expected


@pytest.mark.parametrize("shape", [(), (3,), (2, 9, 1), (4, 0, 2), (1, 1)])
def test_contiguous_strides_are_those_of_torch(shape: tuple[int, ...]) -> None:
    import torch

    assert contiguous(shape) == torch.empty(shape).stride()


def test_a_program_without_inputs_or_outputs_is_sound() -> None:
    verify(Program("nothing", (Y,), (), (), (), ()))
