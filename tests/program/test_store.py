"""A saved Program comes back as it was or not at all."""

import hashlib
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.base.errors import ProgramError
from tilewright.program import KernelSource, from_bytes, load, save, show, to_bytes

from .samples import EVERYTHING

SAVED = to_bytes(EVERYTHING)


def test_a_saved_program_loads_as_it_was(tmp_path: Path) -> None:
    save(EVERYTHING, tmp_path / "step.tw")
    assert load(tmp_path / "step.tw") == EVERYTHING
    assert [path.name for path in tmp_path.iterdir()] == ["step.tw"]


def test_a_saved_program_has_the_mode_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    save(EVERYTHING, tmp_path / "step.tw")
    assert (tmp_path / "step.tw").stat().st_mode == (tmp_path / "plain").stat().st_mode


@given(st.integers(0, len(SAVED) - 1), st.integers(1, 255))
def test_any_byte_altered_is_refused(place: int, change: int) -> None:
    data = bytearray(SAVED)
    data[place] ^= change
    with pytest.raises(ProgramError):
        from_bytes(bytes(data))


def test_any_bit_of_the_header_flipped_is_refused() -> None:
    for place in range(SAVED.index(b"\n") + 1):
        for bit in range(8):
            data = bytearray(SAVED)
            data[place] ^= 1 << bit
            with pytest.raises(ProgramError):
                from_bytes(bytes(data))


@given(st.integers(0, len(SAVED) - 1))
def test_any_truncation_is_refused(length: int) -> None:
    with pytest.raises(ProgramError):
        from_bytes(SAVED[:length])


def test_another_format_is_named_in_the_error() -> None:
    with pytest.raises(ProgramError) as raised:
        from_bytes(SAVED.replace(b"program 4 ", b"program 7 ", 1), source="old.tw")
    assert str(raised.value) == (
        "a saved program is of another format\n"
        "  expected  format 4\n"
        "  found     format 7\n"
        "  where     old.tw\n"
        "  mend      compile the model again and save it"
    )


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"\x80\x04\x95pickle")
    with pytest.raises(ProgramError, match="this is no saved program"):
        load(tmp_path / "weights")


def test_a_sum_that_fits_does_not_excuse_a_broken_rule() -> None:
    bad = replace(EVERYTHING, arena_bytes=8)
    with pytest.raises(ProgramError, match="not inside the arena") as raised:
        from_bytes(to_bytes(bad), source="bad.tw")
    assert raised.value.where == "bad.tw   program 'the \"whole\" language'"


def test_a_body_that_is_no_text_is_refused() -> None:
    body = b"\xff\xfe" + SAVED.split(b"\n", 1)[1]
    data = b"tilewright program 4 sha256 %s\n" % hashlib.sha256(body).hexdigest().encode() + body
    with pytest.raises(ProgramError) as raised:
        from_bytes(data, source="bad.tw")
    assert str(raised.value) == (
        "a saved program is no text\n"
        "  expected  UTF-8\n"
        "  found     b'\\xff\\xfeprogra' at byte 93\n"
        "  where     bad.tw\n"
        "  mend      compile the model again and save it"
    )


def test_a_body_that_does_not_parse_names_file_and_line() -> None:
    body = SAVED.split(b"\n", 1)[1].replace(b"segment", b"sediment", 1)
    data = b"tilewright program 4 sha256 %s\n" % hashlib.sha256(body).hexdigest().encode() + body
    with pytest.raises(ProgramError) as raised:
        from_bytes(data, source="bad.tw")
    assert raised.value.where == "bad.tw   line 24   sediment"


@pytest.mark.parametrize("end", ['"\\' * 20_000, '@"\\"a' * 20_000, '"abc\\'])
def test_quotes_without_an_end_are_refused_at_once(end: str) -> None:
    body = b'program "x" arena 0 ' + end.encode()
    start = time.process_time()
    with pytest.raises(ProgramError, match="line 1"):
        from_bytes(_signed(body))
    assert time.process_time() - start < 2


def test_buffers_above_each_other_without_an_end_are_refused() -> None:
    above = (f'buffer t{k} = arena f32[$"n_0"] above [t{k + 1}]\n' for k in range(3000))
    body = (
        'program "x" arena 0\nsize n_0 3 from 2 to 8\nbuffer x = input f32[$"n_0"]\n'
        + "".join(above)
        + 'buffer t3000 = arena f32[$"n_0"] above [x]\ninput x "input" ""\noutput x\n'
    )
    with pytest.raises(ProgramError):
        from_bytes(_signed(body.encode()))


def _signed(body: bytes) -> bytes:
    header = SAVED[: SAVED.index(b"sha256 ")]
    return header + b"sha256 " + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    place = tmp_path / "step.tw"
    save(EVERYTHING, place)
    before = place.read_bytes()
    with pytest.raises(ProgramError):
        save(replace(EVERYTHING, arena_bytes=8), place)
    with pytest.raises(UnicodeEncodeError):
        save(replace(EVERYTHING, kernels=(_lone_surrogate(),)), place)
    assert place.read_bytes() == before
    assert os.listdir(tmp_path) == ["step.tw"]


def _lone_surrogate() -> KernelSource:
    kernel = EVERYTHING.kernels[0]
    return replace(kernel, text=kernel.text + "// \ud800")


def test_the_text_in_the_file_is_the_text_shown() -> None:
    assert SAVED.split(b"\n", 1)[1].decode() == show(EVERYTHING)
