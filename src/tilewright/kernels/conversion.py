"""Literals and conversions between element types, as C text.

The idea: a value lives in its compute type; loading widens to it, storing rounds from it, and a
cast to a half type rounds and comes back.  Out of range, conversions do what the machine does.

This module does not know expressions.
"""

import math
from collections.abc import Sequence

import numpy as np

from tilewright.base.dtypes import BF16, BOOL, F16, F32, F64, I32, I64, DType
from tilewright.base.sizes import Size
from tilewright.kernels.text import ATOM, COMPARE, TERNARY, UNARY, Term, c_type


def literal(value: bool | int | float) -> Term:
    """Return a Python number as a weak term."""
    if isinstance(value, bool):
        return Term(str(int(value)), BOOL, weak=True, literal=value)
    if isinstance(value, Size):
        return Term(str(value), I64, weak=True)
    if isinstance(value, int):
        return Term(_int_text(value), I64, _sign_level(value), True, value)
    return Term(_float_text(value, F64), F32, _sign_level(value), True, value)


def _sign_level(value: float) -> int:
    return UNARY if math.copysign(1.0, value) < 0 else ATOM


def _int_text(value: int) -> str:
    if value == -(1 << 63):
        return "(-9223372036854775807ll - 1)"
    if not -(1 << 31) < value < 1 << 31:
        return f"{value}ll"
    return str(value)


def _float_text(value: float, dtype: DType) -> str:
    s = "f" if dtype == F32 else ""
    if math.isnan(value):
        return f'__builtin_nan{s}("")'
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inf{s}()"
    if dtype == F32:
        with np.errstate(over="ignore"):
            single = np.float32(value)
        if not np.isfinite(single):
            return _float_text(float(single), dtype)
        text = str(single)
    else:
        text = repr(value)
    return text + ("" if "." in text or "e" in text else ".0") + s


def _as_literal(value: bool | int | float, dtype: DType) -> Term:
    if dtype == BOOL:
        return Term(str(int(bool(value))), BOOL, literal=bool(value))
    if dtype.kind == "int":
        bits = 8 * dtype.bytes
        whole = int(value) if math.isfinite(value) else 0
        wrapped = whole % (1 << bits)
        if dtype.name != "u8" and wrapped >= 1 << (bits - 1):
            wrapped -= 1 << bits
        return Term(_int_text(wrapped), dtype, _sign_level(wrapped), False, wrapped)
    number = float(value)
    return Term(_float_text(number, dtype), dtype, _sign_level(number), False, number)


def convert(term: Term, dtype: DType) -> Term:
    """Return a term in a compute type."""
    assert dtype.compute == dtype, f"{dtype} is no type to compute in"
    if term.literal is not None:
        return _as_literal(term.literal, dtype)
    if term.either is not None and dtype.kind == "float":
        return choice(*term.either, dtype)
    source = term.held
    if source == dtype:
        return Term(term.text, dtype, term.level, exact=term.exact)
    if dtype == BOOL:
        return Term(f"{term.at(COMPARE + 1)} != 0", BOOL, COMPARE)
    text = term.at(UNARY)
    if source.kind == "float" and dtype.kind == "int" and dtype not in (I32, I64):
        text = f"(int){text}"  # out of range, the low bits are kept
    return Term(f"({c_type(dtype)}){text}", dtype, UNARY)


def choice(cond: Term, yes: Term, no: Term, dtype: DType) -> Term:
    """Return one of two terms in a compute type."""
    a, b = convert(yes, dtype), convert(no, dtype)
    text = f"{convert(cond, BOOL).at(TERNARY + 1)} ? {a.at(TERNARY + 1)} : {b.at(TERNARY)}"
    return Term(text, dtype, TERNARY, exact=held_exactly((a, b)))


def held_exactly(terms: Sequence[Term]) -> DType | None:
    """Return the half type that holds each of these float32 as it is, if some of them tell one."""
    half = next((term.exact for term in terms if term.literal is None), None)
    held = half is not None and all(
        term.exact == half if term.literal is None else _is_held(float(term.literal), half)
        for term in terms
    )
    return half if held else None


def _is_held(number: float, half: DType) -> bool:
    with np.errstate(over="ignore"):
        if half == F16:
            return math.isnan(number) or float(np.float16(number)) == number
        single = np.float32(number)
    return math.isnan(number) or (float(single) == number and not single.view(np.int32) & 0xFFFF)


def load(dtype: DType, element: str, level: int, used: set[str]) -> Term:
    """Return an element read from memory in its compute type."""
    if dtype == BF16:
        used.add("load_bf16")
        return Term(f"load_bf16({element})", F32, exact=dtype)
    if dtype == F16:
        text = element if level == ATOM else f"({element})"
        return Term(f"(float){text}", F32, UNARY, exact=dtype)
    return Term(element, dtype, level)


def stored(term: Term, dtype: DType, used: set[str]) -> str:
    """Return the text of what is written to memory that holds `dtype`."""
    if dtype == BF16:
        how = "store_bf16" if term.exact != BF16 else "halved_bf16"
        used.add(how)
        return f"{how}({convert(term, F32).text})"
    if dtype == F16:
        return f"(_Float16){convert(term, F32).at(UNARY)}"
    if dtype == BOOL:
        return f"(unsigned char){convert(term, BOOL).at(UNARY)}"
    return convert(term, dtype).text


def rounded(term: Term, dtype: DType, used: set[str]) -> Term:
    """Round to an element type, and go on in its compute type."""
    made = convert(term, dtype.compute)
    if made.exact == dtype:
        return made
    if dtype == BF16:
        used.update(("load_bf16", "store_bf16"))
        return Term(f"load_bf16(store_bf16({made.text}))", F32, exact=dtype)
    if dtype == F16:
        return Term(f"(float)(_Float16){made.at(UNARY)}", F32, UNARY, exact=dtype)
    return made
