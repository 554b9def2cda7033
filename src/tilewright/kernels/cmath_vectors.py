"""How functions of many lanes are spelled in C, where vectors have 64 or 32 bytes.

The idea: a chain of twenty operations makes a processor wait, so that each is named for four
vectors before the next.  What comes out has the bits of the function of one lane, but where it goes
by a table (`cmath_tables`).

This module does not know which functions there are.
"""

from tilewright.kernels.cmath_snippet import Snippet, lanes_head, one_by_one

MOST = 4
"""Vectors under way: with what they are made of they fill 16 registers."""
UNSIGNED = "typedef unsigned U __attribute__((vector_size(4 * wide)));"


def operation(name: str, to: str, a: str, b: str) -> str:
    """Return the step that makes `to` of `a` and `b` by an instruction.

    Into a vector of the function's own, never x[k]: of an instruction that writes memory GCC does
    not know what else it writes, and stores and loads the sums of a loop around in each turn.
    """
    assert not to.startswith("x["), f"{name} writes memory"
    return f'__asm__("{name} %2, %1, %0" : "=v"({to}) : "v"({a}), "v"({b}));'


def fused(to: str, a: str, b: str, c: str, name: str = "vfmadd213ps") -> str:
    """Return the step that makes a b + c with one rounding (or, by its name, -a b + c);
    into a vector of the function's own, as `operation`."""
    assert not to.startswith("x["), f"{name} writes memory"
    return f'__asm__("{name} %3, %2, %0" : "=v"({to}) : "0"({a}), "v"({b}), "v"({c}));'


def polynomial(to: str, of: str, terms: tuple[str, ...]) -> tuple[str, ...]:
    """Return the steps of a polynomial; the term of the highest power is the first."""
    first, *rest = terms
    return (f"{to} = zero + {first};", *(fused(to, to, of, f"zero + {term}") for term in rest))


def each(steps: tuple[str, ...]) -> str:
    """Return the text of steps, each for the vectors numbered k before the next."""
    head = f"#pragma GCC unroll {MOST}\n        for (long k = 0; k < vectors; k++)\n            "
    return "".join(f"{head}{step}\n" for step in steps if step)


def floats(names: str, *texts: str) -> str:
    """Return those of these names of arrays of vectors that are in the texts, as declared."""
    text = "".join(texts)
    return ", ".join(f"{one}[{MOST}]" for one in names if f"{one}[k]" in text)


def stepping(body: str) -> str:
    """Return the lines that go through vectors MOST at a time: `body` is of x[0] to before
    x[vectors]."""
    return f"""\
#ifdef __AVX512F__
    enum {{ wide = 16 }};
#else
    enum {{ wide = 8 }};
#endif
    typedef float V __attribute__((vector_size(4 * wide), aligned(4), may_alias));
    const V zero = {{0}};
    const long vectors = count / wide < {MOST} ? count / wide : {MOST};
    for (long at = 0; at < count; at += {MOST} * wide) {{
        V *const x = (V *)(x_ + at);
{body}\
    }}
"""


def lanes(name: str, body: str, otherwise: str = "", needs: tuple[str, ...] = ()) -> Snippet:
    """Return a function of lanes: `body` is of the vectors x[0] to before x[vectors].

    otherwise: the lines where there are no such vectors; one by one, if not given.  needs: the
    snippets that these lines use.
    """
    text = f"""\
/* Step by step for all vectors, so that their chains stand beside each other. */
{lanes_head(name)}\
#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
{stepping(body)}\
#else
{otherwise or one_by_one(name)}\
#endif
}}"""
    return Snippet(f"{name}_lanes", text, (name, *needs))


def guarded(
    name: str, far: tuple[str, ...], sign: str, declared: str, steps: tuple[str, ...]
) -> str:
    """Return the body of a function of lanes whose steps are right where no lane is unusual; where
    one is, all four vectors go the way of the function of one lane.

    far: the steps that gather in `far`, of unsigned numbers, what tells unusual lanes.
    sign: what of `far` has its highest bit set then.
    """
    return f"""\
        {UNSIGNED}
        {declared}
        U far = {{0}};
{each(far)}\
        far = {sign};
#ifdef __AVX512F__
        unsigned short unusual;
        __asm__("vptestmd %2, %1, %0" : "=Yk"(unusual) : "v"(far), "v"((U)zero + 0x80000000));
#else
        const int unusual = __builtin_ia32_movmskps256((V)far);
#endif
        if (__builtin_expect(unusual == 0, 1)) {{
{each(steps)}\
        }} else {{
            for (long l = at; l < at + vectors * wide; l++) x_[l] = {name}(x_[l]);
        }}
"""
