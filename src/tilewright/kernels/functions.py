"""The scalar functions in C: which operator or function each becomes, and the type of its result.

The idea: the same promotion as the evaluator's (weak numbers take the other side's type), then one
line per function; constants are folded only where that is exact.

This module does not know tensors.
"""

from collections.abc import Sequence

from tilewright.base.dtypes import BOOL, BY_NAME, F32, F64, I64, DType, promote
from tilewright.base.scalar import BY_NAME as FUNCTIONS
from tilewright.kernels.conversion import choice, convert, held_exactly, literal, rounded
from tilewright.kernels.text import ATOM, COMPARE, PRODUCT, SUM, TERNARY, UNARY, Term

_ORDER = {"bool": 0, "int": 1, "float": 2}
_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_ARITHMETIC = {"add": ("+", SUM), "sub": ("-", SUM), "mul": ("*", PRODUCT), "div": ("/", PRODUCT)}
_BITS = {"bitand": "&", "bitor": "|", "bitxor": "^"}
_ROUNDING = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "rint"}
_UNARY = frozenset(
    [
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "rsqrt",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "sigmoid",
        "erf",
        "erfc",
        "normal_cdf",
        "asinh",
        "acosh",
        "atanh",
    ]
)
_BINARY = frozenset(("pow", "atan2", "hypot", "xlogy", "xlog1py"))
# Of numbers that a half type holds as they are, these make such: one of them, or a shorter one.
_SHORT = frozenset(("neg", "abs", "sign", "max", "min", "copysign", *_ROUNDING))


def meet(terms: Sequence[Term]) -> tuple[DType, bool]:
    """Return the type that terms meet in, and whether that is weak."""
    strong = [term.dtype for term in terms if not term.weak]
    weak = [term.dtype for term in terms if term.weak]
    highest = max(weak, key=lambda dtype: _ORDER[dtype.kind], default=None)
    if not strong:
        assert highest is not None, "a function of no arguments has no type"
        return highest, True
    result = strong[0]
    for dtype in strong[1:]:
        result = promote(result, dtype)
    if highest is not None and _ORDER[highest.kind] > _ORDER[result.kind]:
        result = highest
    return result, False


def apply(fn: str, args: Sequence[Term], used: set[str]) -> Term:
    """Return `fn` of the arguments; notes in `used` the support functions that the text calls."""
    row = FUNCTIONS[fn]
    assert len(args) == row.arity, f"{fn} takes {row.arity} arguments, not {len(args)}"
    if fn in BY_NAME:
        return rounded(args[0], BY_NAME[fn], used)
    if fn in ("and", "or", "not"):
        return _logic(fn, [convert(arg, BOOL) for arg in args])
    if fn == "uniform":
        used.add("uniform")
        seed, index = (convert(arg, I64).at(UNARY) for arg in args)
        return Term(f"uniform((unsigned long){seed}, (unsigned long){index})", F32)
    if fn == "select":
        return _select(args[0], args[1], args[2])
    common, weak = meet(args)
    if row.result == "float" and common.kind != "float":
        common = F32
    if common == BOOL and fn in ("add", "sub", "mul", "neg"):
        common = I64
    held = F64 if weak and common.kind == "float" else common
    terms = [convert(arg, held) for arg in args]
    if row.result == "bool":
        return _predicate(fn, terms, held)
    made = (
        _float(fn, terms, held, used) if held.kind == "float" else _int(fn, terms, held, weak, used)
    )
    exact = held_exactly(terms) if fn in _SHORT and held == F32 else None
    return Term(made.text, common, made.level, weak, made.literal, exact)


def _logic(fn: str, terms: list[Term]) -> Term:
    if fn == "not":
        return Term(f"!{terms[0].at(UNARY)}", BOOL, UNARY)
    return Term(f"{terms[0].at(SUM)} {'&' if fn == 'and' else '|'} {terms[1].at(SUM)}", BOOL, 3)


def _select(cond: Term, yes: Term, no: Term) -> Term:
    common, weak = meet((yes, no))
    held = F64 if weak and common.kind == "float" else common
    if cond.literal is not None:
        chosen = convert(yes if cond.literal else no, held)
        return Term(chosen.text, common, chosen.level, weak, chosen.literal, chosen.exact)
    either = (cond, yes, no) if weak and _is_constant(yes) and _is_constant(no) else None
    made = choice(cond, yes, no, held)
    return Term(made.text, common, TERNARY, weak, exact=made.exact, either=either)


def _is_constant(term: Term) -> bool:
    """Say whether a term is a number that any type rounds once, or one of such."""
    if term.either is not None or isinstance(term.literal, float):
        return True
    return term.literal is not None and abs(term.literal) <= 1 << 24


def _predicate(fn: str, terms: list[Term], held: DType) -> Term:
    if fn in _COMPARE:
        a, b = terms
        return Term(f"{a.at(COMPARE + 1)} {_COMPARE[fn]} {b.at(COMPARE + 1)}", BOOL, COMPARE)
    if held.kind != "float":
        return Term("0", BOOL)
    x = terms[0].at(COMPARE + 1)
    if fn == "isnan":
        return Term(f"{x} != {x}", BOOL, COMPARE)
    s = "f" if held == F32 else ""
    return Term(f"__builtin_fabs{s}({terms[0].text}) == __builtin_inf{s}()", BOOL, COMPARE)


def _binary(symbol: str, level: int, terms: list[Term], dtype: DType) -> Term:
    # The left operand of the same level needs no parentheses; the right one keeps its order.
    return Term(f"{terms[0].at(level)} {symbol} {terms[1].at(level + 1)}", dtype, level)


def _float(fn: str, terms: list[Term], dtype: DType, used: set[str]) -> Term:
    if fn in _ARITHMETIC:
        return _binary(*_ARITHMETIC[fn], terms, dtype)
    plain = _float_operator(fn, terms, dtype)
    if plain is not None:
        return plain
    n = dtype.name
    if fn in ("max", "min", "mod", "fmod", "floordiv", "fma"):
        name = f"{fn}_{n}"
    else:
        assert fn in _UNARY or fn in _BINARY, f"{fn} of floats has no C function"
        name = f"{fn}_{n}"
    used.add(name)
    return Term(f"{name}({', '.join(term.text for term in terms)})", dtype)


def _float_operator(fn: str, terms: list[Term], dtype: DType) -> Term | None:
    """Print what C has an operator or the compiler a function for; None for the rest."""
    s, x = "f" if dtype == F32 else "", terms[0]
    if fn in _ROUNDING:
        return Term(f"__builtin_{_ROUNDING[fn]}{s}({x.text})", dtype)
    match fn:
        case "neg":
            if x.literal is not None:
                return convert(literal(-float(x.literal)), dtype)
            return Term(f"-{x.at(ATOM)}", dtype, UNARY)
        case "abs":
            return Term(f"__builtin_fabs{s}({x.text})", dtype)
        case "sign":  # NaN gives 0, as in torch
            above = f"({x.at(SUM)} > 0 ? 1.0{s} : 0.0{s})"
            below = f"({x.at(SUM)} < 0 ? 1.0{s} : 0.0{s})"
            return Term(f"{above} - {below}", dtype, SUM)
        case "reciprocal":
            return Term(f"1.0{s} / {x.at(PRODUCT + 1)}", dtype, PRODUCT)
        case "sqrt":
            return Term(f"__builtin_sqrt{s}({x.text})", dtype)
        case "copysign":
            return Term(f"__builtin_copysign{s}({x.text}, {terms[1].text})", dtype)
        case "pow":
            return _known_power(x, terms[1], dtype, s)
    return None


def _known_power(x: Term, power: Term, dtype: DType, s: str) -> Term | None:
    """Print powers that torch computes by products and roots, as it does."""
    if power.literal is None or x.level < ATOM:
        return None
    t = x.text
    texts = {
        1.0: (t, ATOM),
        2.0: (f"{t} * {t}", PRODUCT),
        3.0: (f"{t} * {t} * {t}", PRODUCT),
        0.5: (f"__builtin_sqrt{s}({t})", ATOM),
        -0.5: (f"1.0{s} / __builtin_sqrt{s}({t})", PRODUCT),
        -1.0: (f"1.0{s} / {t}", PRODUCT),
        -2.0: (f"1.0{s} / ({t} * {t})", PRODUCT),
    }
    found = texts.get(float(power.literal))
    return None if found is None else Term(found[0], dtype, found[1])


def _int(fn: str, terms: list[Term], dtype: DType, weak: bool, used: set[str]) -> Term:
    x, n = terms[0], dtype.name
    if fn in _ROUNDING:
        return x
    if fn in _BITS:
        return Term(f"{x.at(SUM)} {_BITS[fn]} {terms[1].at(SUM)}", dtype, 3)
    if dtype == BOOL:
        return _bool(fn, terms)
    if fn == "bitnot":
        return _cast(f"~{x.at(UNARY)}", dtype)
    if fn in ("add", "sub", "mul"):
        return _binary_int(fn, terms, dtype, weak, used)
    if fn == "neg":
        if x.literal is not None:
            return convert(literal(-x.literal), dtype)
        return _binary_int("sub", [convert(literal(0), dtype), x], dtype, weak, used)
    if fn in ("abs", "sign"):
        sign = _cast(f"(({x.at(SUM)} > 0) - ({x.at(SUM)} < 0))", dtype)
        return sign if fn == "sign" else _binary_int("mul", [x, sign], dtype, False, used)
    name = f"{'floordiv' if fn == 'exactdiv' else fn}_{n}"
    known = ("max", "min", "floordiv", "mod", "fmod", "pow", "exactdiv")
    assert fn in known, f"{fn} of integers has no C function"
    used.add(name)
    return Term(f"{name}({', '.join(term.text for term in terms)})", dtype)


def _cast(text: str, dtype: DType) -> Term:
    return Term(f"({dtype.c}){text}", dtype, UNARY)


def _binary_int(fn: str, terms: list[Term], dtype: DType, weak: bool, used: set[str]) -> Term:
    if weak:  # arithmetic of loops: it cannot overflow
        return _binary(*_ARITHMETIC[fn], terms, dtype)
    used.add(f"{fn}_{dtype.name}")
    return Term(f"{fn}_{dtype.name}({terms[0].text}, {terms[1].text})", dtype)


def _bool(fn: str, terms: list[Term]) -> Term:
    if fn == "bitnot":
        return Term(f"!{terms[0].at(UNARY)}", BOOL, UNARY)
    if fn in ("abs", "sign"):
        return terms[0]
    if fn in ("max", "min"):
        return _logic("or" if fn == "max" else "and", terms)
    assert fn == "pow", f"{fn} of truth values has no C function"
    return Term(f"{terms[0].at(SUM)} | !{terms[1].at(UNARY)}", BOOL, 3)
