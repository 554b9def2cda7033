"""The attention recipe: softmax(scale q k' + mask) v and its gradients, streamed by blocks.

The idea: `attention.c` holds one function that computes a block of queries (forward) or of keys
(backward) of one head, of any strides, and never holds more scores than those of one block; it is
compiled once a machine and element type.  An attention's own kernel is a few lines that say which
block of which head belongs to which part.  What is computed of a block does not depend on who
computes the others, so the number of threads is not seen in the result.

This module does not know whether a library would be faster.
"""

import functools
import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

from tilewright.base.dtypes import F32, F64, DType
from tilewright.kernels.body import volume
from tilewright.kernels.contraction import PAIRED, words_text
from tilewright.kernels.emit import PARTS, Emitted, even, named
from tilewright.kernels.support import print_support

DTYPES = (F32, F64, PAIRED)
BLOCK, QUERIES = 128, 256  # keys of a block, and queries of one forward, at most
BLOCKS = (QUERIES, 128, 64, 32)  # of queries, to try
RECIPE = 2  # grows when what was measured of it no longer holds
PANEL = 32  # a multiple of the lanes of two vectors, on any machine
HELD_BYTES = 65536  # of a block of q, k or v, at most, on the stack
WIDEST_BYTES = 1024  # of a row of q, k or v, at most
UNITS = 8  # that threads share evenly enough: below, blocks are smaller or keys are cut
CUT = 2 * BLOCK  # keys that are a unit of their own, at least
PART_FLOPS = 250_000  # below, a part is not worth a thread's attention
MASKS = {"": 0, "added": 1, "kept": 2}
_TEXT = Path(__file__).with_suffix(".c")
_FORWARD = ("q", "k", "v", "mask", "y", "l")
_BACKWARD = ("q", "k", "v", "mask", "y", "l", "dy", "dq", "dk", "dv")


@dataclass(frozen=True, slots=True)
class Strides:
    """How a tensor lies, in elements: strides of the leading loops, from a head to the next that
    shares its k and v, from row to row, and from column to column."""

    lead: tuple[int, ...]
    head: int
    row: int
    column: int


@dataclass(frozen=True, slots=True)
class Attention:
    """An attention of one element type, or its gradient.

    lead: extents of the loops in front of the heads that share a k and v; heads: how many share
    them.  queries, keys, width, depth: rows of q, rows of k and v, columns of q and k, columns of
    v; none of them is 0.  mask: "", "added" to the scores, or "kept" where a bool says so.
    tensors: by name q, k, v, y (the result), l (the logarithms of each row's sum), mask where there
    is one, and of a gradient dy, dq, dk and dv.  All are of the element type but l and dq, which
    are of the type that is computed in.
    """

    dtype: DType
    lead: tuple[int, ...]
    heads: int
    queries: int
    keys: int
    width: int
    depth: int
    causal: bool
    mask: str
    scale: float
    tensors: tuple[tuple[str, Strides], ...]

    @property
    def pairs(self) -> int:
        """Scores of a head that count."""
        if not self.causal:
            return self.queries * self.keys
        below = min(self.queries, self.keys)
        return below * (below + 1) // 2 + (self.queries - below) * self.keys

    def flops(self, *, backward: bool) -> int:
        """Products and sums: of two products forward, of five backward."""
        columns = 3 * self.width + 2 * self.depth if backward else self.width + self.depth
        return 2 * columns * self.pairs * self.heads * volume(self.lead)


def is_narrow(dtype: DType, width: int) -> bool:
    """Say whether rows of so many elements fit the blocks."""
    return width * dtype.compute.bytes <= WIDEST_BYTES


@functools.cache
def attention_source(dtype: DType, *, backward: bool) -> tuple[str, str]:
    """Return the name and the text of the C function for blocks of an element type."""
    text = words_text(dtype) + _TEXT.read_text(encoding="utf-8")
    sums = dtype.compute
    single = sums == F32
    logarithm = print_support(["log_f32" if single else "log_f64"])
    kind = "gradient" if backward else "forward"
    name = f"attention_{kind}_{dtype.name}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    given = {
        "ELEMENT": sums.c,
        "INTEGER": "int" if single else "long",
        "BYTES": str(sums.bytes),
        "SINGLE": str(int(single)),
        "BACKWARD": str(int(backward)),
        "LOGARITHM": "log_f32" if single else "log_f64",
        "NAME": name,
    }
    lines = [f"#define {macro} {meaning}" for macro, meaning in given.items()]
    return name, "\n".join((*lines, "" if backward else logarithm, text))


def emit_attention(attention: Attention, queries: int = QUERIES) -> Emitted:
    """Return the kernel of an attention: p is q, k, v, the mask if any, the result, the logarithms.

    queries: of a block, at most; the knob of the recipe, one of `query_blocks`.
    `attention_source` gives the function that it calls.
    """
    size = _block_of(attention, queries)
    blocks = -(-attention.queries // size)
    turn = f"u % {blocks}"
    if attention.causal:  # later blocks see more: any run of units has early and late ones
        turn = f"{turn} % 2 ? {blocks - 1} - {turn} / 2 : {turn} / 2"
    lines = [f"const long first = ({turn}) * {size};"]
    most = attention.queries
    last = f"first + {size} < {most} ? first + {size} : {most}"
    return _emit(attention, _FORWARD, blocks, lines, last, backward=False)


def emit_attention_grad(attention: Attention) -> Emitted:
    """Return the kernel of its gradient: p is dy, the result, the logarithms, q, k, v, the mask if
    any, then dq, dk, dv; where keys are cut (`cuts`), dq has one more dim in front, to be summed.
    """
    bounds = cuts(attention)
    if len(bounds) == 2:
        lines = ["const long first = 0;"]
        return _emit(attention, _BACKWARD, 1, lines, str(attention.keys), backward=True)
    lines = [
        f"static const long cuts[] = {{{', '.join(map(str, bounds))}}};",
        f"const long cut = u % {len(bounds) - 1}, first = cuts[cut];",
    ]
    return _emit(attention, _BACKWARD, len(bounds) - 1, lines, "cuts[cut + 1]", backward=True)


def cuts(attention: Attention) -> tuple[int, ...]:
    """Return where the keys of a head are cut into units of equal work, and their begin and end:
    (0, keys) unless heads are few."""
    wanted = -(-UNITS // volume(attention.lead))
    pieces = max(1, min(wanted, attention.keys // CUT))
    shares = [at / pieces for at in range(1, pieces)]
    if attention.causal:  # key j is seen by the queries from j on
        shares = [1 - math.sqrt(1 - share) for share in shares]
    seen = min(attention.keys, attention.queries) if attention.causal else attention.keys
    inner = {round(seen * share / BLOCK) * BLOCK for share in shares}
    return (0, *sorted(inner - {0, attention.keys}), attention.keys)


def query_blocks(attention: Attention) -> tuple[int, ...]:
    """Return the blocks of queries that differ and fit, the usual first."""
    return tuple(dict.fromkeys(_block_of(attention, most) for most in BLOCKS))


def _block_of(attention: Attention, most: int) -> int:
    """Return how many queries a block has."""
    row = max(attention.width, attention.depth) * attention.dtype.compute.bytes
    size = min(most, HELD_BYTES // row // PANEL * PANEL)
    heads = attention.heads * volume(attention.lead)
    while size > PANEL and heads * -(-attention.queries // size) < UNITS:
        size //= 2
    return size


def _emit(
    attention: Attention,
    names: tuple[str, ...],
    blocks: int,
    block: list[str],
    last: str,
    *,
    backward: bool,
) -> Emitted:
    """Return the kernel that calls the function for each head and block, which has the blocks of a
    head after each other.  block: the lines that say where block u begins; last: where it ends."""
    function, _ = attention_source(attention.dtype, backward=backward)
    lies = dict(attention.tensors)
    c, sums = attention.dtype.c, attention.dtype.compute.c
    heads = 1 if backward else attention.heads
    loops = [*attention.lead, heads]
    units = volume(loops) * blocks
    types = {name: sums if name in ("l", "dq") else c for name in names}
    types |= {name: f"const {types[name]}" for name in names if name not in _written(names)}
    types["mask"] = f"const {'char' if attention.mask == 'kept' else c}"
    order = _operands(names, lies)
    arguments = ["0" if n not in lies else f"p_{n}{_start(lies[n], loops)}" for n in names]
    lines = [
        f"/* {attention_words(attention, backward=backward)} */",
        f"extern void {function}(const long *, long, long, "
        + ", ".join("const void *" if name == "mask" else f"{types[name]} *" for name in names)
        + f", {sums});",
        "int KERNEL(char **p, long part, long end, long parts)",
        "{",
        f"    static const long shape[] = {{{', '.join(map(str, _shape(attention)))}}};",
        *(f"    {types[n]} *p_{n} = ({types[n]} *)p[{at}];" for at, n in enumerate(order)),
        f"    const long last = {units} * end / parts;",
        f"    for (long u = {units} * part / parts; u < last; u++) {{",
        *(f"        {line}" for line in block),
        f"        long batch = u / {blocks};",
    ]
    for at in reversed(range(len(loops))):
        lines.append(f"        const long b{at} = batch % {loops[at]};")
        lines += [f"        batch /= {loops[at]};"] if at else []
    if len(cuts(attention)) > 2 and backward:
        piece = volume(attention.lead) * attention.heads * attention.queries * attention.width
        arguments[names.index("dq")] += f" + cut * {piece}"
    lines += [
        f"        {function}(shape, first, {last},",
        f"            {', '.join(arguments)},",
        f"            {attention.scale!r});",
        "    }",
        "    return 0;",
        "}",
    ]
    flops = attention.flops(backward=backward)
    parts = even(max(1, min(PARTS, units, flops // PART_FLOPS)), units)
    reason = f"attention: {attention_words(attention, backward=backward)}, {units} units"
    return named(lines, parts, flops, _bytes(attention, backward), reason)


def _written(names: tuple[str, ...]) -> tuple[str, ...]:
    return ("dq", "dk", "dv") if "dq" in names else ("y", "l")


def _operands(names: tuple[str, ...], lies: dict[str, Strides]) -> list[str]:
    """Return the tensors in the order of the operator's operands and results."""
    order = ("dy", "y", "l", "q", "k", "v", "mask", "dq", "dk", "dv") if "dq" in names else names
    return [name for name in order if name in lies]


def _start(lies: Strides, loops: list[int]) -> str:
    """Return what is added to a tensor's pointer in front of a unit."""
    strides = (*lies.lead, lies.head if loops[-1] > 1 else 0)
    return "".join(f" + b{at} * {stride}" for at, stride in enumerate(strides) if stride)


def _shape(attention: Attention) -> list[int]:
    """Return the struct `Shape` of `attention.c`."""
    lies = dict(attention.tensors)
    none = Strides((), 0, 0, 0)
    q, k, v, mask, y, l, dy, dq, dk, dv = (lies.get(name, none) for name in _BACKWARD)  # noqa: E741
    a = attention
    return [
        *(a.queries, a.keys, a.width, a.depth, int(a.causal), MASKS[a.mask]),
        *(stride for one in (q, k, v, mask, y) for stride in (one.row, one.column)),
        l.row,
        *(stride for one in (dy, dq, dk, dv) for stride in (one.row, one.column)),
        a.heads,
        *(one.head for one in (q, mask, y, l, dy, dq)),
    ]


def _bytes(attention: Attention, backward: bool) -> int:
    a, times = attention, 2 if backward else 1
    rows = a.heads * a.queries * (a.width + a.depth) + a.keys * (a.width + a.depth)
    return times * volume(a.lead) * rows * a.dtype.bytes


def attention_words(attention: Attention, *, backward: bool) -> str:
    """Return an attention's extents in words."""
    a = attention
    lead = "".join(f"{extent} x " for extent in (*a.lead, *((a.heads,) if a.heads > 1 else ())))
    width = f"{a.width}" if a.width == a.depth else f"{a.width} and {a.depth}"
    words = ["gradient" if backward else "", "causal" if a.causal else ""]
    words.append({"": "", "added": "mask added", "kept": "mask"}[a.mask])
    extra = "".join(f", {word}" for word in words if word)
    return f"{lead}{a.queries} queries x {a.keys} keys of {width}, {a.dtype.name}{extra}"
