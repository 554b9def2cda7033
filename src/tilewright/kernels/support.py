"""The small C functions that kernels are built from: conversions, integer arithmetic, Philox.

The idea: C leaves open, or traps on, what torch defines: rounding to bfloat16, wrapping integers,
division by zero, the maximum of a NaN.  Each has a small function here, printed into a kernel only
where the kernel uses it.

This module does not know expressions; `expression` decides which function an operation becomes.
"""

from collections.abc import Iterable

from tilewright.base.dtypes import BOOL, F32, F64, I8, I16, I32, I64, U8, DType
from tilewright.kernels.cmath import SNIPPETS
from tilewright.kernels.cmath_snippet import LANES, Snippet, in_roads
from tilewright.kernels.turned import TURNED

_HALF = (
    Snippet(
        "load_bf16",
        """\
static inline float load_bf16(unsigned short h) {
    union { unsigned int i; float f; } u;
    u.i = (unsigned int)h << 16;
    return u.f;
}""",
    ),
    Snippet(
        "store_bf16",
        """\
/* Round to nearest even; a NaN stays one. */
static inline unsigned short store_bf16(float x) {
    union { float f; unsigned int i; } u;
    u.f = x;
    const unsigned int rounded = (u.i + 0x7fffu + ((u.i >> 16) & 1u)) >> 16;
    return (unsigned short)(x != x ? 0x7fc0u : rounded);
}""",
    ),
    Snippet(
        "halved_bf16",
        """\
/* Of what is a bfloat16 already. */
static inline unsigned short halved_bf16(float x) {
    union { float f; unsigned int i; } u;
    u.f = x;
    return (unsigned short)(u.i >> 16);
}""",
    ),
)

_UNIFORM = Snippet(
    "uniform",
    """\
/* The first word of Philox4x32-10 (key: seed, counter: i) as a float in [0, 1). */
static inline float uniform(unsigned long seed, unsigned long i) {
    unsigned int a = (unsigned int)i, b = (unsigned int)(i >> 32), c = 0, d = 0;
    unsigned int k = (unsigned int)seed, l = (unsigned int)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        const unsigned long p = 0xd2511f53ul * a, q = 0xcd9e8d57ul * c;
        a = (unsigned int)(q >> 32) ^ b ^ k;
        c = (unsigned int)(p >> 32) ^ d ^ l;
        b = (unsigned int)q;
        d = (unsigned int)p;
        k += 0x9e3779b9u;
        l += 0xbb67ae85u;
    }
    return (float)(int)(a >> 8) * 5.9604644775390625e-8f;
}""",
)


def _extremes(dtype: DType) -> tuple[Snippet, ...]:
    return (
        *(each for fn, op in (("max", ">"), ("min", "<")) for each in _extreme(dtype, fn, op)),
        Snippet(
            f"not_ordered_{dtype.name}",
            f"""\
/* Whether x is a NaN that its folding passes over. */
static inline int not_ordered_{dtype.name}({dtype.c} x) {{
#ifdef __AVX2__
    return x != x;
#else
    (void)x;
    return 0;
#endif
}}""",
        ),
    )


def _extreme(dtype: DType, fn: str, op: str) -> tuple[Snippet, ...]:
    n, c = dtype.name, dtype.c
    return (
        # NaN in either argument wins; a processor has one instruction for `best`.
        Snippet(
            f"{fn}_{n}",
            f"static inline {c} {fn}_{n}({c} a, {c} b) {{\n"
            f"    const {c} best = a {op} b ? a : b;\n    return a != a ? a : best;\n}}",
        ),
        # Short vectors are so many that asking all of them for NaNs takes longer.
        Snippet(
            f"folded_{fn}_{n}",
            f"""\
static inline {c} folded_{fn}_{n}({c} a, {c} b) {{
#ifdef __AVX2__
    return a {op} b ? a : b;
#else
    return {fn}_{n}(a, b);
#endif
}}""",
            (f"{fn}_{n}",),
        ),
    )


def _rests(dtype: DType) -> tuple[Snippet, ...]:
    """Return the rest of a division, exact: by one division where its quotient is short enough."""
    n, c, s = dtype.name, dtype.c, "f" if dtype == F32 else ""
    digits = 24 if dtype == F32 else 53
    return (
        Snippet(
            f"fmod_near_{n}",
            f"""\
/* Where a / b is short of {digits} bits: it may round up to a whole number, but what is left then
   has no more digits than b has, and is exact. */
static inline int fmod_is_far_{n}({c} a, {c} b) {{
    const {c} x = __builtin_fabs{s}(a), y = __builtin_fabs{s}(b);
    return !(x < y * {1 << digits - 1}.0{s} && y < __builtin_inf{s}());
}}
static inline {c} fmod_near_{n}({c} a, {c} b) {{
    const {c} x = __builtin_fabs{s}(a), y = __builtin_fabs{s}(b);
    const {c} r = fma_{n}(-__builtin_trunc{s}(x / y), y, x);
    return __builtin_copysign{s}(r < 0 ? r + y : r, a);
}}""",
            (f"fma_{n}",),
        ),
        Snippet(
            f"fmod_{n}",
            f"""\
extern {c} fmod{s}({c}, {c});
static inline {c} fmod_{n}({c} a, {c} b) {{
    return fmod_is_far_{n}(a, b) ? fmod{s}(a, b) : fmod_near_{n}(a, b);
}}""",
            (f"fmod_near_{n}",),
        ),
    )


def _floor_divisions(dtype: DType) -> tuple[Snippet, ...]:
    """Return what is made of the rest, by both roads, and all divisions of blocks of lanes."""
    n, c, s = dtype.name, dtype.c, "f" if dtype == F32 else ""
    return (
        *(
            Snippet(
                f"mod{road}_{n}",
                f"""\
/* a - floor(a / b) b, with the sign of b. */
static inline {c} mod{road}_{n}({c} a, {c} b) {{
    const {c} r = fmod{road}_{n}(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}}""",
                (f"fmod{road}_{n}",),
            )
            for road in ("", "_near")
        ),
        *(
            Snippet(
                f"floordiv{road}_{n}",
                f"""\
/* floor(a / b), found from the exact remainder so that a rounded quotient cannot be one off. */
static inline {c} floordiv{road}_{n}({c} a, {c} b) {{
    const {c} r = fmod{road}_{n}(a, b);
    {c} q = (a - r) / b;
    q -= r != 0 && (r < 0) != (b < 0) ? 1 : 0;
    {c} whole = __builtin_floor{s}(q);
    whole += q - whole > ({c})0.5 ? 1 : 0;
    whole = q == 0 ? __builtin_copysign{s}(0, a / b) : whole;
    return b == 0 ? a / b : whole;
}}""",
                (f"fmod{road}_{n}",),
            )
            for road in ("", "_near")
        ),
        *(
            in_roads(
                f"{name}_{n}",
                c,
                f"fmod_is_far_{n}(x, y)",
                f"{name}_near_{n}",
                (f"{name}_near_{n}",),
                ("x", "y"),
            )
            for name in ("fmod", "mod", "floordiv")
        ),
    )


def unsigned(dtype: DType) -> str:
    """Return the C type in which additions of this integer type may wrap around."""
    return "unsigned long" if dtype.bytes == 8 else "unsigned int"


def _words(dtype: DType) -> Snippet:
    move = "vpmovsxbd" if dtype == I8 else "vpmovzxbd"
    return Snippet(
        f"words_of_{dtype.name}",
        f"""\
/* Words of `some` bytes that lie together, a vector at a time; the others of `all` are 0. */
__attribute__((always_inline))
static inline void words_of_{dtype.name}(
    int *to, const {dtype.c} *from, const long some, const long all) {{
#if defined(__AVX512F__)
    typedef char B __attribute__((vector_size(16), aligned(1), may_alias));
    typedef int W __attribute__((vector_size(64), aligned(4), may_alias));
    for (long l = 0; l < all; l += 16) {{
        W words;
        const B *const bytes = (const B *)(from + l);
        const unsigned short here = some <= l ? 0 : (1 << ((some - l) & 15)) - 1;
        if (some - l >= 16) __asm__("{move} %1, %0" : "=v"(words) : "m"(*bytes));
        else __asm__("{move} %1, %0%{{%2%}}%{{z%}}" : "=v"(words) : "m"(*bytes), "Yk"(here));
        *(W *)(to + l) = words;
    }}
#elif defined(__AVX2__)
    typedef long B __attribute__((vector_size(16)));
    typedef int W __attribute__((vector_size(32), aligned(4), may_alias));
    for (long l = 0; l < all; l += 8) {{
        const long here = some - l < 0 ? 0 : some - l < 8 ? some - l : 8;
        const {dtype.c} *const last = from + l + (here & 6);
        unsigned four = 0;
        unsigned short two = 0;
        unsigned long bytes = 0;
        if (here == 8) __builtin_memcpy(&bytes, from + l, 8);
        if (here & 4) __builtin_memcpy(&four, from + l, 4);
        if (here & 2) __builtin_memcpy(&two, from + l + (here & 4), 2);
        bytes |= four | (unsigned long)two << 8 * (here & 4);
        if (here & 1) bytes |= (unsigned long)(unsigned char)*last << 8 * (here & 6);
        const B together = {{(long)bytes, 0}};
        W words;
        __asm__("{move} %1, %0" : "=x"(words) : "x"(together));
        *(W *)(to + l) = words;
    }}
#else
    for (long l = 0; l < some; l++) to[l] = from[l];
    for (long l = some; l < all; l++) to[l] = 0;
#endif
}}""",
    )


def _int_functions(dtype: DType) -> tuple[Snippet, ...]:
    n, c, u = dtype.name, dtype.c, unsigned(dtype)
    compare = tuple(
        Snippet(
            f"{fn}_{n}", f"static inline {c} {fn}_{n}({c} a, {c} b) {{ return a {op} b ? a : b; }}"
        )
        for fn, op in (("max", ">"), ("min", "<"))
    )
    wrapping = tuple(
        Snippet(
            f"{fn}_{n}",
            f"static inline {c} {fn}_{n}({c} a, {c} b) {{ return ({c})(({u})a {op} ({u})b); }}",
        )
        for fn, op in (("add", "+"), ("sub", "-"), ("mul", "*"))
    )
    # The callers count a division by zero as an error; here it only must not trap.
    negated = f"({c})(0 - ({u})a)"
    divisions = tuple(
        Snippet(
            f"{fn}_{n}",
            f"static inline {c} {fn}_{n}({c} a, {c} b) {{\n    if (b == 0) return 0;\n"
            + (f"    if (b == -1) return {minus};\n" if dtype != U8 else "")
            + body
            + "\n}",
        )
        for fn, minus, body in (
            ("fmod", "0", f"    return ({c})(a % b);"),
            (
                "mod",
                "0",
                f"    const {c} r = ({c})(a % b);\n"
                f"    return r != 0 && (r < 0) != (b < 0) ? ({c})(r + b) : r;",
            ),
            (
                "floordiv",
                negated,
                f"    const {c} q = ({c})(a / b);\n"
                f"    return a % b != 0 && (a < 0) != (b < 0) ? ({c})(q - 1) : q;",
            ),
        )
    )
    power = Snippet(
        f"pow_{n}",
        f"""\
static inline {c} pow_{n}({c} a, {c} b) {{
    {u} r = 1, p = ({u})a;
    if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
    for (; b; b = ({c})(b / 2), p *= p) r *= b % 2 ? p : 1;
    return ({c})r;
}}""",
    )
    return (*compare, *wrapping, *divisions, power)


_TABLE = (
    *_HALF,
    *TURNED,
    _UNIFORM,
    *map(_words, (BOOL, U8, I8)),
    *_extremes(F32),
    *_extremes(F64),
    *(snippet for dtype in (U8, I8, I16, I32, I64) for snippet in _int_functions(dtype)),
    Snippet(
        "stream",
        """\
/* Writes lines past the caches; what does not fill one, and all where no line begins, as usual. */
static inline void stream(char *to, const char *from, long bytes) {
    long at = 0;
    for (; at + 64 <= bytes && ((unsigned long)to & 63) == 0; at += 64) {
#if defined(__clang__)
        typedef float V __attribute__((vector_size(16), may_alias));
        typedef float U __attribute__((vector_size(16), aligned(1), may_alias));
        for (int k = 0; k < 64; k += 16)
            __builtin_nontemporal_store(*(const U *)(from + at + k), (V *)(to + at + k));
#elif defined(__AVX512F__)
        typedef float V __attribute__((vector_size(64), aligned(1), may_alias));
        __builtin_ia32_movntps512((float *)(to + at), *(const V *)(from + at));
#elif defined(__AVX__)
        typedef float V __attribute__((vector_size(32), aligned(1), may_alias));
        for (int k = 0; k < 64; k += 32)
            __builtin_ia32_movntps256((float *)(to + at + k), *(const V *)(from + at + k));
#elif defined(__SSE__)
        typedef float V __attribute__((vector_size(16), aligned(1), may_alias));
        for (int k = 0; k < 64; k += 16)
            __builtin_ia32_movntps((float *)(to + at + k), *(const V *)(from + at + k));
#else
        __builtin_memcpy(to + at, from + at, 64);
#endif
    }
    if (at < bytes) __builtin_memcpy(to + at, from + at, bytes - at);
}
/* What others read after a barrier has come by then. */
static inline void streamed(void) {
#if defined(__SSE__)
    __builtin_ia32_sfence();
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}""",
    ),
    Snippet(
        "next_page",
        """\
/* Asks where a page lies that is streamed to next.  Intel's processors with AVX-512 do not wait for
   it, and a line that is asked for, to be written past the caches then, is moved for nothing. */
static inline void next_page(const void *place) {
#if !defined(__AVX512F__) || defined(__znver3__) || defined(__znver4__) || defined(__znver5__)
    __builtin_prefetch(place, 1);
#endif
}""",
    ),
    # LANES ones and as many zeros: read from LANES - some on, the first `some` are ones.
    Snippet(
        "is_present",
        f"""\
/* Lanes of which some are present: all run where a vector can be read in part.  It is looked up who
   is, as of a comparison the compiler takes the last lane out of the loop. */
static inline int is_present(long lane, long some) {{
#ifdef __AVX2__
    static const int present[{2 * LANES}] = {{{", ".join("1" * LANES)}}};
    return present[lane + {LANES} - some];
#else
    (void)lane, (void)some;
    return 1;
#endif
}}
static inline long running(long some, long all) {{
#ifdef __AVX2__
    (void)some;
    return all;
#else
    (void)all;
    return some;
#endif
}}""",
    ),
    Snippet("malloc", "extern void *malloc(unsigned long);\nextern void free(void *);"),
    *SNIPPETS,
    *_rests(F32),
    *_floor_divisions(F32),
    *_rests(F64),
    *_floor_divisions(F64),
)
SUPPORT = {snippet.name: snippet for snippet in _TABLE}
"""All that kernels may be given, by name."""


def print_support(used: Iterable[str]) -> str:
    """Return the text of the functions named and of all they need, each once, in a fixed order."""
    needed: set[str] = set()
    waiting = list(used)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting.extend(SUPPORT[name].needs)
    return "\n".join(snippet.text for snippet in _TABLE if snippet.name in needed)
