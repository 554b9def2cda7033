"""The page of contractions: sums of products.

The idea: a matrix product is `y[m, n] += a[m, k] * b[k, n]` with whatever stands before broadcast;
a bias is one pointwise addition after it.

This module does not know convolutions (`window`) or attention.
"""

from tilewright.base.expr import Const, Read, Sym
from tilewright.base.sizes import same
from tilewright.graph.build import Builder
from tilewright.graph.ir import Dim, Formula, Loop, TensorType, Value
from tilewright.graph.notation import normal
from tilewright.graph.total import fixed
from tilewright.ops.nest import index, limited, loops, one_dim, sizes
from tilewright.ops.operator import Attrs, Operator, Types, sample, write


def _matmul(types: Types, _: Attrs) -> str:
    left, right = types[0].rank, types[1].rank
    if left == 1 and right == 1:
        return "y[] += a[k] * b[k]"
    if left == 1:
        return "y[..., n] += a[k] * b[..., k, n]"
    if right == 1:
        return "y[..., m] += a[..., m, k] * b[k]"
    return "y[..., m, n] += a[..., m, k] * b[..., k, n]"


def _linear(types: Types, _: Attrs) -> str | None:
    return "y[..., o] += x[..., k] * w[o, k]" if len(types) == 2 else None


def _linear_bias(builder: Builder, inputs: tuple[Value, ...], _: Attrs) -> tuple[Value, ...]:
    x, weight, bias = inputs
    body = "y[..., o] += x[..., k] * w[o, k]"
    if is_half(x):
        shape = (*x.type.shape[:-1], weight.type.shape[0])
        return (_onto(builder, body, bias, shape, "linear", {"x": x, "w": weight}),)
    product = write(builder, body, x=x, w=weight, name="product")
    return (write(builder, "y[..., o] = p[..., o] + b[o]", p=product, b=bias, name="linear"),)


def _addmm(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    x, a, b = inputs
    body = "y[..., m, n] += a[..., m, k] * b[..., k, n]"
    alpha, beta = attrs["alpha"], attrs["beta"]
    assert isinstance(alpha, int | float) and isinstance(beta, int | float), "two numbers"
    if alpha == beta == 1 and is_half(a):
        shape = (*a.type.shape[:-1], b.type.shape[-1])
        return (_onto(builder, body, x, shape, "addmm", {"a": a, "b": b}),)
    # In half types a sum is rounded once, after it is scaled and added to, as torch does.
    product = write(builder, body, a=a, b=b, dtype=a.type.dtype.compute, name="product")
    scaled = "p[...]" if alpha == 1 else "alpha * p[...]"
    added = "x[...]" if beta == 1 else "beta * x[...]"
    if beta == 0:  # torch does not read x at all: NaN in it does not spread
        body = f"y[...] = {scaled}"
        made = write(builder, body, p=product, alpha=alpha, dtype=a.type.dtype, name="addmm")
        return (made,)
    body = f"y[...] = {added} + {scaled}"
    given = {"x": x, "p": product, "alpha": alpha, "beta": beta}
    return (write(builder, body, given, dtype=a.type.dtype, name="addmm"),)


def is_half(value: Value) -> bool:
    """Say whether a value's type is not that which sums of it have."""
    return value.type.dtype != value.type.dtype.compute


def _onto(
    builder: Builder,
    body: str,
    addend: Value,
    shape: tuple[Dim, ...],
    name: str,
    operands: dict[str, Value],
) -> Value:
    """Add a product to what is broadcast: one sum, which half types round once, as torch does."""
    if addend.type.shape != shape:
        loops = tuple(Loop(f"i{dim}", extent) for dim, extent in enumerate(shape))
        target = tuple(Sym(loop.name) for loop in loops)
        kept = target[len(shape) - addend.type.rank :]
        index = tuple(
            Const(0) if same(fixed(size), 1) else entry
            for entry, size in zip(kept, addend.type.shape, strict=True)
        )
        type_ = TensorType(shape, addend.type.dtype)
        spread = normal(Formula(("x",), loops, target, "=", Read("x", index), type_))
        addend = builder.formula(spread, addend, name="addend")
    return write(builder, f"{body} from e", {**operands, "e": addend}, name=name)


def _cross(types: Types, attrs: Attrs) -> str:
    rank = max(type_.rank for type_ in types)
    dim = one_dim(attrs["dim"], rank)
    shapes = [(1,) * (rank - type_.rank) + sizes(type_.shape) for type_ in types]
    assert all(shape[dim] == 3 for shape in shapes), "vectors of three are multiplied"
    names = loops(rank)
    target = [max(pair, key=lambda size: size != 1) for pair in zip(*shapes, strict=True)]

    def read(tensor: str, at: int, shift: int) -> str:
        entries = ["0" if shapes[at][k] == 1 else name for k, name in enumerate(names)]
        entries[dim] = f"({names[dim]}+{shift})%3"
        return f"{tensor}[{index(entries[rank - types[at].rank :])}]"

    left = f"{read('a', 0, 1)} * {read('b', 1, 2)}"
    return f"y[{limited(target)}] = {left} - {read('a', 0, 2)} * {read('b', 1, 1)}"


PAGE = (
    Operator(
        "matmul(a, b)  y[..., m, n] += a[..., m, k] * b[..., k, n]",
        "The matrix product; vectors count as rows or columns, leading dims broadcast.",
        declare=_matmul,
        eager="torch.matmul({a}, {b})",
        samples=(
            sample("f[2, 3]", "f[3, 4]"),
            sample("f[5, 2, 3]", "f[3, 4]"),
            sample("f[5, 1, 2, 3]", "f[2, 3, 4]"),
            sample("f[3]", "f[3]"),
            sample("f[3]", "f[2, 3, 4]"),
            sample("f[2, 2, 3]", "f[3]"),
        ),
    ),
    Operator(
        "mm(a, b)  y[m, n] += a[m, k] * b[k, n]",
        "The product of two matrices.",
        eager="torch.mm({a}, {b})",
        samples=(sample("f[2, 3]", "f[3, 4]"),),
    ),
    Operator(
        "bmm(a, b)  y[z, m, n] += a[z, m, k] * b[z, k, n]",
        "The products of two batches of matrices.",
        eager="torch.bmm({a}, {b})",
        samples=(sample("f[5, 2, 3]", "f[5, 3, 4]"),),
    ),
    Operator(
        "mv(a, b)  y[m] += a[m, k] * b[k]",
        "A matrix times a vector.",
        eager="torch.mv({a}, {b})",
        samples=(sample("f[2, 3]", "f[3]"),),
    ),
    Operator(
        "dot(a, b)  y[] += a[k] * b[k]",
        "The inner product of two vectors.",
        eager="torch.dot({a}, {b})",
        samples=(sample("f[4]", "f[4]"),),
    ),
    Operator(
        "outer(a, b)  y[m, n] = a[m] * b[n]",
        "Every product of an element of one and an element of the other.",
        eager="torch.outer({a}, {b})",
        samples=(sample("f[2]", "f[3]"),),
    ),
    Operator(
        "cross(a, b; dim=-1)  y[i] = a[(i+1)%3] * b[(i+2)%3] - a[(i+2)%3] * b[(i+1)%3]",
        "The vector product along a dim of three.",
        declare=_cross,
        eager="torch.linalg.cross({a}, {b}, dim={dim})",
        samples=(
            sample("f[2, 3]", "f[2, 3]"),
            sample("f[3, 4]", "f[3, 1]", dim=0),
            sample("f[3]", "f[3]"),
        ),
    ),
    Operator(
        "linear(x, w, bias?)  y[..., o] += x[..., k] * w[o, k]",
        "x times the transposed weight, and a bias.",
        declare=_linear,
        expand=_linear_bias,
        eager="torch.nn.functional.linear({x}, {w}, {bias})",
        samples=(
            sample("f[2, 3]", "f[4, 3]"),
            sample("f[5, 2, 3]", "f[4, 3]", "f[4]"),
            sample("f[3]", "f[4, 3]", "f[4]"),
        ),
    ),
    Operator(
        "addmm(x, a, b; beta=1, alpha=1)",
        "beta x + alpha a b, x broadcast; with beta = 0, x is not read.",
        expand=_addmm,
        eager="torch.addmm({x}, {a}, {b}, beta={beta}, alpha={alpha})",
        samples=(
            sample("f[4]", "f[2, 3]", "f[3, 4]"),
            sample("f[2, 4]", "f[2, 3]", "f[3, 4]", beta=0.5, alpha=2),
            sample("f[2, 4] = " + ", ".join(["nan"] * 8), "f[2, 3]", "f[3, 4]", beta=0),
        ),
    ),
    Operator(
        "baddbmm(x, a, b; beta=1, alpha=1)",
        "beta x + alpha a b over batches, x broadcast.",
        expand=_addmm,
        eager="torch.baddbmm({x}, {a}, {b}, beta={beta}, alpha={alpha})",
        samples=(
            sample("f[5, 2, 4]", "f[5, 2, 3]", "f[5, 3, 4]"),
            sample("f[2, 1]", "f[5, 2, 3]", "f[5, 3, 4]", alpha=0.25),
        ),
    ),
)
