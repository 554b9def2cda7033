"""One C function as text, those that are cut into steps or roads, and the views of floats as bits.

The idea: what takes long is written as steps, from which two texts are made: the function, and one
of many lanes that takes each step for all of them before the next.  A processor that looks at a few
hundred instructions then has several vectors under way, where one chain makes it wait.

This module does not know which functions there are.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

LANES = 64
"""How many elements a step is taken for at most: what passes between steps stays in the first
cache."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """One C function (or declaration): its name, its text, and the snippets that it uses."""

    name: str
    text: str
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """Lines of a function of `x` in float32, and the names of what later steps take from it."""

    text: str
    gives: tuple[str, ...]


def in_steps(
    name: str,
    why: str,
    steps: Sequence[Step],
    result: str,
    needs: tuple[str, ...] = (),
    otherwise: str = "",
) -> tuple[Snippet, Snippet]:
    """Return a function `float name(float x)`, and `void name_lanes(float *x, long count)` that
    replaces `count` elements, LANES at most, by what it makes of them, with the same operations.

    result: what the last lines return.  otherwise: lines in their place that use doubles, where no
    processor's operation multiplies and adds, and floats would become doubles for each.
    """
    lines = "".join(step.text for step in steps)
    whole = where_fused(f"{lines}    return {result};\n", otherwise)
    plain = f"{why}\nstatic inline float {name}(float x) {{\n{whole}}}"
    given: tuple[str, ...] = ()
    loops = []
    for at, step in enumerate(steps):
        last = at + 1 == len(steps)
        read = re.findall(r"\w+", step.text + (result if last else ""))
        taken = [f"{one} = {one}_[l]" for one in ("x", *given) if one in read]
        put = [f"{one}_[l] = {one}" for one in step.gives] or [f"x_[l] = {result}"]
        body = [f"const float {', '.join(taken)};", *_lines(step.text), f"{', '.join(put)};"]
        inside = "".join(f"        {line}\n" for line in body)
        loops.append(f"    for (long l = 0; l < count; l++) {{\n{inside}    }}\n")
        given += step.gives
    between = ", ".join(f"{one}_[{LANES}]" for one in given)
    stepped = f"    float {between};\n{''.join(loops)}"
    text = f"{lanes_head(name)}{where_fused(stepped, one_by_one(name) if otherwise else '')}}}"
    return Snippet(name, plain, needs), Snippet(f"{name}_lanes", text, (name, *needs))


def in_roads(
    name: str, c: str, far: str, near: str, needs: tuple[str, ...], takes: Sequence[str] = ("x",)
) -> Snippet:
    """Return `void name_lanes(c *x, ..., long count)`, which replaces `count` elements of the first
    array by what a function makes of them: by `name`, which is right everywhere, where any of them
    is far off, and else by `near`, which is right for all others and has the same bits there.

    c: the type of an element.  far: the condition of one argument, or one of each, that is far off.
    """
    text = f"{lanes_head(name, c, takes)}{roads(name, c, far, near, takes)}}}"
    return Snippet(f"{name}_lanes", text, (name, *needs))


def roads(name: str, c: str, far: str, near: str, takes: Sequence[str] = ("x",)) -> str:
    """Return the lines of what `in_roads` returns."""
    read = "".join(f"        const {c} {one} = {one}_[l];\n" for one in takes)
    arguments = ", ".join(f"{one}_[l]" for one in takes)
    loop = "for (long l = 0; l < count; l++)"
    return f"""\
    int far = 0;
    {loop} {{
{read}\
        far |= {far};
    }}
    if (far)
        {loop} x_[l] = {name}({arguments});
    else
        {loop} x_[l] = {near}({arguments});
"""


def one_by_one(name: str) -> str:
    """Return the line of a function of lanes that calls the function of one for each."""
    return f"    for (long l = 0; l < count; l++) x_[l] = {name}(x_[l]);\n"


def lanes_head(name: str, c: str = "float", takes: Sequence[str] = ("x",)) -> str:
    """Return how a function of lanes begins: each call has a copy, for it knows the count.

    takes: the arguments' names; the results stand in place of the first.

    From here on no loop that copies becomes a call, or moves of 16 bytes: wider vectors read what
    it writes, and would wait for it.
    """
    apart = '#pragma GCC optimize("no-tree-loop-distribute-patterns")'
    others = "".join(f"const {c} *{one}_, " for one in takes[1:])
    head = f"static inline void {name}_lanes({c} *{takes[0]}_, {others}const long count) {{"
    return f"{apart}\n__attribute__((always_inline))\n{head}\n"


def horner(name: str, of: str, terms: Sequence[str], c: str = "float") -> str:
    """Return lines that make a polynomial; the term of the highest power is the first."""
    first, *rest = terms
    fused = "fma_f32" if c == "float" else "fused"
    lines = (f"    {name} = {fused}({name}, {of}, {term});\n" for term in rest)
    return f"    {c} {name} = {first};\n{''.join(lines)}"


def where_fused(lines: str, otherwise: str) -> str:
    """Return lines, or others in their place where no operation multiplies and adds, if given."""
    return (
        f"#ifdef __FMA__\n{lines}#else  /* in double */\n{otherwise}#endif\n"
        if otherwise
        else lines
    )


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


BITS = (
    Snippet(
        "bits_f32",
        """\
static inline int bits_f32(float x) { union { float f; int i; } u; u.f = x; return u.i; }
static inline float from_bits_f32(int i) { union { int i; float f; } u; u.i = i; return u.f; }""",
    ),
    Snippet(
        "bits_f64",
        """\
static inline long bits_f64(double x) { union { double f; long i; } u; u.f = x; return u.i; }
static inline double from_bits_f64(long i) {
    union { long i; double f; } u;
    u.i = i;
    return u.f;
}""",
    ),
    Snippet(
        "fma_f32",
        """\
static inline float fma_f32(float a, float b, float c) {
#ifdef __FMA__
    return __builtin_fmaf(a, b, c);
#else  /* the library's function is a hundred times slower than this */
    return (float)((double)a * b + c);
#endif
}""",
    ),
    Snippet(
        "fused",
        """\
/* a b + c in as few roundings as the processor has at no price. */
static inline double fused(double a, double b, double c) {
#ifdef __FMA__
    return __builtin_fma(a, b, c);
#else
    return a * b + c;
#endif
}""",
    ),
)
