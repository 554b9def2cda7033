"""A Program's text parses back to the Program, and what is no Program's text is refused."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.base.errors import ProgramError
from tilewright.program import KernelSource, LibraryCall, Template, read, show, verify

from .samples import EVERYTHING

Golden = Callable[[str, str], None]


def test_every_part_of_the_language_round_trips() -> None:
    verify(EVERYTHING)
    assert read(show(EVERYTHING)) == EVERYTHING
    assert show(read(show(EVERYTHING))) == show(EVERYTHING)


plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8")),
    st.just(("%", 0)),
    st.just(("dtype", "f64")),
)
templates = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: ("list", *items)),
        # A tuple that begins with a marker is what the marker says: no plain string may be one.
        st.lists(inner, max_size=3)
        .map(tuple)
        .filter(lambda items: not items or items[0] not in ("%", "list", "dtype")),
    ),
    max_leaves=8,
)


@given(st.lists(templates, max_size=4).map(tuple))
def test_arguments_of_library_calls_round_trip(args: tuple[Template, ...]) -> None:
    call = next(item for item in EVERYTHING.instructions if isinstance(item, LibraryCall))
    program = replace(EVERYTHING, instructions=(replace(call, args=args),))
    assert read(show(program)) == program


@given(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")))
def test_any_kernel_text_and_any_name_round_trip(text: str, name: str) -> None:
    program = replace(EVERYTHING, name=name, kernels=(KernelSource("scale", text),))
    assert read(show(program)) == program


def test_nan_round_trips_as_an_argument() -> None:
    call = next(item for item in EVERYTHING.instructions if isinstance(item, LibraryCall))
    program = replace(EVERYTHING, instructions=(replace(call, args=(float("nan"),)),))
    assert show(read(show(program))) == show(program)


WRONG_LINES = [
    ("segment", "sediment", "'sediment' begins no line"),
    ("f32[4, 8]", "f31[4, 8]", "'f31' is no dtype"),
    ("f32[4, 8]", "f32[4, 8] strides [1]", "strides do not fit"),
    ("buffer b ", "buffer a ", "two buffers have the name 'a'"),
    ("(x) -> (a)", "(x) -> (q)", "no buffer above has the name 'q'"),
    ("(x) -> (a)", "(x) - (a)", "'-' is no part"),
    ("(x) -> (a)", "(x, ) -> (a)", "a name is missing before ')'"),
    ("parts 2", "parts 2.5", "'2.5' is no integer"),
    ("parts 2", "parts 222222222222222222222", "no integer in range"),
    ('data "AAEC', 'data "AAE', "no base64"),
    ("output y", "output y y", "'y' is too much"),
    ("output y", "output", "a name is missing before ''"),
    ("%0, %1", "%0, " + "[" * 100, "nested too deep"),
    ("(%0, %1)", "[%0, %1]", "'(' is missing before '['"),
    ("arena 320", "arena x", "a number is missing before 'x'"),
    ("update x", "\tupdate x", "is no part"),
    ("%0, %1", "%0, maybe", "'maybe' is no argument"),
    ('"two\\"', '"two\\q', "is no string"),
]


@pytest.mark.parametrize(("old", "new", "says"), WRONG_LINES)
def test_a_line_that_is_wrong_is_refused_with_its_number(old: str, new: str, says: str) -> None:
    text = show(EVERYTHING)
    assert old in text
    with pytest.raises(ProgramError) as raised:
        read(text.replace(old, new, 1))
    assert says in str(raised.value)
    error = raised.value
    assert "line " in error.where
    assert error.expected
    assert error.found
    assert error.mend


def test_what_every_wrong_line_says(golden: Golden) -> None:
    texts = []
    for old, new, _ in WRONG_LINES:
        with pytest.raises(ProgramError) as raised:
            read(show(EVERYTHING).replace(old, new, 1))
        texts.append(str(raised.value))
    with pytest.raises(ProgramError) as raised:
        read(show(EVERYTHING).rstrip("\n"))
    golden("wrong_lines.txt", "\n\n".join([*texts, str(raised.value)]))


def test_a_text_without_a_last_line_end_is_refused() -> None:
    with pytest.raises(ProgramError, match="line's end"):
        read(show(EVERYTHING).rstrip("\n"))


@given(st.text())
def test_any_text_is_a_program_or_refused(text: str) -> None:
    try:
        read(text)
    except ProgramError:
        pass
    else:
        raise AssertionError(f"{text!r} was read as a program")
