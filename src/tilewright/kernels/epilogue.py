"""What follows a matrix product in its kernel, while the product's elements are in cache.

The idea: `contraction.c` says which rows and columns have all their terms; the formulas that follow
are printed as a function over such a range, by the same printers as any kernel.

This module does not know products, nor when following one pays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.base.algebra import affine
from tilewright.base.expr import Expr, Read, Sym, names
from tilewright.graph import notation
from tilewright.graph.ir import Graph
from tilewright.kernels.body import Body, canonical, static_extents, static_shape, volume
from tilewright.kernels.emit import bytes_of, flops_of, memory_of
from tilewright.kernels.expression import Memory, Printer
from tilewright.kernels.layout import merged, offsets
from tilewright.kernels.plan import named_region
from tilewright.kernels.regions import Region
from tilewright.kernels.statement import State, Statement
from tilewright.kernels.storing import store
from tilewright.kernels.support import print_support
from tilewright.kernels.text import Block, Scope, Term

PRODUCT = "a0"
"""The product's canonical name: it is the first input of the formulas that follow it."""


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Pointwise formulas over a product: its outputs have the product's shape and loops.

    graph: its first input is the product, of half types its sums.  strides: of inputs that are not
    contiguous.  rows, columns: the product's dims that its kernel's rows (batches among them) and
    columns run through, outermost first; dims of one element may be left out.  There is more than
    one column.
    """

    graph: Graph
    strides: Mapping[str, tuple[int, ...]]
    rows: tuple[int, ...]
    columns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Following:
    """An epilogue in C, as the function `KERNEL_then` that takes sums.

    Its pointers come after those of the product's operands: its other inputs, its outputs.

    flops, bytes: what all of it computes, and touches beyond the product.
    """

    text: tuple[str, ...]
    flops: int
    bytes: int


def print_epilogue(epilogue: Epilogue) -> Following | None:
    """Print what follows a product; None where an element may turn out to be an error, or memory is
    gone through in another direction than the product's."""
    body = canonical(epilogue.graph, epilogue.strides)
    memory = memory_of(body)
    printer = Printer(body, {name: memory[name] for name in memory if name.startswith("a")})
    root = Scope(Block(), frozenset())
    region = _region(body, epilogue)
    if region is None:
        return None
    printer.enter(dict(region.extents))
    outputs = {name: memory[name] for name in memory if name.startswith("v")}
    product = body.inputs[0].type
    _print_range(printer, region, outputs, root)
    if printer.can_fail:
        return None
    lines = [
        *filter(None, (print_support(printer.used),)),
        *(f"/* then {name}: {_shown(body, name)} */" for name, _ in body.formulas),
        "typedef struct { char **p; long before; } KERNEL_with;",
        f"static void KERNEL_then(const void *with, const {product.dtype.c} *sums,",
        "    long step, long top, long bottom, long left, long right)",
        "{",
        "    const KERNEL_with *const given = (const KERNEL_with *)with;",
        "    char **p = given->p;",
        "    top += given->before, bottom += given->before;",
        *_pointers(body),
        *root.block.render(1),
        "}",
    ]
    sums = volume(static_shape(product)) * product.dtype.bytes
    return Following(tuple(lines), flops_of(body), bytes_of(body) - sums)


def _shown(body: Body, name: str) -> str:
    formula = body.formula(name)
    assert formula is not None, f"{name} is a formula's"
    return f"{notation.show(formula)}   {formula.type}".replace("*/", "* /")


def _region(body: Body, epilogue: Epilogue) -> Region | None:
    """Give all outputs the loops of the product, rows and columns apart; merge neighbours.

    None where elements of one row do not lie side by side in all that is read and written.
    """
    state = State(body)
    shape = static_shape(body.inputs[0].type)
    loops = {
        dim: state.fresh(shape[dim])
        for dim in (*epilogue.rows, *epilogue.columns)
        if shape[dim] != 1
    }
    for name in body.outputs:
        formula = body.formula(name)
        assert formula is not None, "an output that is an input is copied"
        bind: list[tuple[str, Expr]] = []
        for dim, entry in enumerate(formula.index):
            if isinstance(entry, Sym):
                bind.append((entry.name, Sym(loops[dim])))
        assert len(bind) == len(static_extents(formula)), "outputs run over the product's loops"
        state.statements[name] = Statement(name, formula, tuple(bind))
    rows, columns = (
        tuple(loops[dim] for dim in dims if dim in loops)
        for dims in (epilogue.rows, epilogue.columns)
    )
    statements = tuple(state.statements[name] for name in body.outputs)
    region = merged(state, Region(statements, rows, columns))
    inner = Sym(region.columns[-1])
    for offset, _ in offsets(state, region):
        _, terms = affine(offset)
        divided = any(inner.name in names(atom) for atom in terms if atom != inner)
        if divided or terms.get(inner, 0) not in (0, 1):
            return None
    return named_region(state, region)


def _print_range(
    printer: Printer, region: Region, outputs: Mapping[str, Memory], root: Scope
) -> None:
    """Print rows from `top` to `bottom` and columns from `left` to `right`, each as one number.

    The product's elements are in `sums`, a row every `step`.
    """
    rows, columns, extents = region.rows, region.columns, printer.extents
    inner, length = columns[-1], extents[columns[-1]]
    unit = root.inner(*rows)
    unit.add("const long row = (u - top) * step;")
    _decode(unit, rows, extents)
    across, low, high, at = unit, "left", "right", f"{inner} - left"
    if len(columns) > 1:  # the innermost as far as it goes, then on with the next of the others
        across, low, high, at = unit.inner(*columns[:-1]), "at", "end", f"v - left + {inner} - at"
        across.add(f"const long u = v / {length}, at = v % {length};")
        across.add(f"const long last = right - v + at, end = last < {length} ? last : {length};")
        _decode(across, columns[:-1], extents)
    loop = across.inner(inner)
    first = region.statements[0]
    element = Term(f"sums[row + {at}]", printer.memory[PRODUCT].dtype)
    index = tuple(first.bound(entry) for entry in first.formula.index)
    printer.define(printer.normal(Read(PRODUCT, index)), element, loop)
    for statement in region.statements:
        store(printer, statement, outputs, loop)
    across.add("#pragma GCC ivdep")
    across.attach(loop, f"for (long {inner} = {low}; {inner} < {high}; {inner}++)")
    if across is not unit:
        across.add("v += end - at;")
        unit.attach(across, "for (long v = left; v < right;)")
    root.attach(unit, "for (long u = top; u < bottom; u++)")


def _decode(scope: Scope, loops: Sequence[str], extents: Mapping[str, int]) -> None:
    """Define loops from `u`, the number of their iteration."""
    step = volume([extents[name] for name in loops])
    for at, name in enumerate(loops):
        step //= extents[name]
        place = "u" if step == 1 else f"u / {step}"
        scope.add(f"const long {name} = {f'{place} % {extents[name]}' if at else place};")


def _pointers(body: Body) -> list[str]:
    """Return the lines that name the pointers; the product's two operands come before them."""
    lines = []
    for at, name in enumerate((*(t.name for t in body.inputs[1:]), *body.outputs), start=2):
        c, const = body.type(name).dtype.c, "const " if name.startswith("a") else ""
        lines.append(f"    {const}{c} *{name} = ({const}{c} *)p[{at}];")
    return lines
