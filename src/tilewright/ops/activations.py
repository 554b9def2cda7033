"""The page of activations: pointwise functions between layers, with torch's kinks.

The idea: a form is chosen so that its derived gradient is finite wherever the function is: silu is
`x * sigmoid(x)`, for the derivative of `x / (1 + exp(-x))` would be infinity over infinity.

This module does not know the rest of the pointwise page.
"""

from tilewright.base.syntax import show_number
from tilewright.graph.build import Builder
from tilewright.graph.ir import Node
from tilewright.ops.nest import index, limited, loops, one_dim, sizes
from tilewright.ops.operator import Attrs, Operator, Sample, Tangents, Types, sample, write

_ANY = "f[2, 3]"
_KINKS = "f[9] = -inf, -100, -3, -0.5, 0, 0.5, 3, 100, inf"
_FINITE = "f[9] = -200, -30, -3, -0.5, 0, 0.5, 3, 30, 200"


def _activation(line: str, doc: str, *samples: Sample, kink: str = "", eager: str = "") -> Operator:
    name = line.partition("(")[0]
    return Operator(
        line,
        doc,
        dtype="promote",
        kink=kink,
        eager=eager or f"torch.nn.functional.{name}({{x}})",
        samples=samples,
    )


def _gelu(_: Types, attrs: Attrs) -> str:
    if attrs["approximate"] == "none":
        return "y[...] = x[...] * normal_cdf(x[...])"
    assert attrs["approximate"] == "tanh", f"gelu has no form {attrs['approximate']!r}"
    inner = "0.7978845608028654 * (x[...] + 0.044715 * x[...] * x[...] * x[...])"
    return f"y[...] = 0.5 * x[...] * (1 + tanh({inner}))"


def _softplus(_: Types, attrs: Attrs) -> str:
    beta, threshold = attrs["beta"], attrs["threshold"]
    assert isinstance(beta, int | float) and isinstance(threshold, int | float), "two numbers"
    if beta == 1:
        return "y[...] = x[...] if x[...] > threshold else log1p(exp(x[...]))"
    return f"y[...] = x[...] if x[...] * {show_number(beta)} > threshold else " + (
        "log1p(exp(x[...] * beta)) / beta"
    )


def _glu(types: Types, attrs: Attrs) -> str:
    shape = sizes(types[0].shape)
    dim = one_dim(attrs["dim"], len(shape))
    assert shape[dim] % 2 == 0, f"a dim of {shape[dim]} has no halves"
    half = shape[dim] // 2
    low, high = loops(len(shape)), loops(len(shape))
    high[dim] = f"{low[dim]}+{half}"
    target = limited([half if at == dim else size for at, size in enumerate(shape)])
    return f"y[{target}] = x[{index(low)}] * sigmoid(x[{index(high)}])"


def _hardsigmoid_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    (dy,) = tangents
    if dy is None:
        return (None,)
    (x,), sixth = node.inputs, 0.1666666716337204
    body = "y[...] = dy[...] * sixth if x[...] > -3 and x[...] < 3 else 0"
    return (write(builder, body, dy=dy, x=x, sixth=sixth, dtype=x.type.dtype, origin=node.origin),)


PAGE = (
    _activation(
        "relu(x)  y[...] = 0 if x[...] <= 0 else x[...]",
        "x where it is positive, else 0; NaN stays.",
        sample(_ANY),
        sample(_KINKS),
        kink="the gradient at 0 is 0",
    ),
    _activation(
        "leaky_relu(x; negative_slope=0.01)  "
        "y[...] = x[...] if x[...] > 0 else x[...] * negative_slope",
        "x where it is positive, else x times a slope.",
        sample(_KINKS, negative_slope=0.2),
        kink="the gradient at 0 is the slope",
        eager="torch.nn.functional.leaky_relu({x}, {negative_slope})",
    ),
    _activation(
        "hardtanh(x; min_val=-1.0, max_val=1.0)  "
        "y[...] = min_val if x[...] <= min_val else max_val if x[...] >= max_val else x[...]",
        "Limit to a range.",
        sample("f[7] = -inf, -2, -1, 0, 1, 2, inf"),
        sample("f[5] = -1, 0, 3, 6, 7", min_val=0.0, max_val=6.0),
        kink="the gradient on a bound is 0",
        eager="torch.nn.functional.hardtanh({x}, {min_val}, {max_val})",
    ),
    Operator(
        "hardsigmoid(x)  y[...] = 0 if x[...] <= -3 else 1 if x[...] >= 3 else x[...] / 6 + 0.5",
        "The sigmoid in three straight pieces.",
        vjp=_hardsigmoid_vjp,
        vjp_reason="torch's slope is the float32 nearest to 1/6, for float64 too",
        kink="the gradient at -3 and 3 is 0",
        eager="torch.nn.functional.hardsigmoid({x})",
        samples=(sample(_KINKS),),
    ),
    _activation(
        "hardswish(x)  "
        "y[...] = 0 * x[...] if x[...] <= -3 else x[...] if x[...] >= 3 "
        "else x[...] * (x[...] / 6 + 0.5)",
        "x times hardsigmoid(x).",
        sample("f[9] = -200, -30, -3, -0.5, 0, 0.5, 3, 30, 200"),
        kink="the gradient at -3 is 0, at 3 it is 1",
    ),
    _activation(
        "elu(x; alpha=1.0)  y[...] = alpha * expm1(x[...]) if x[...] <= 0 else x[...]",
        "x where it is positive, else alpha (exp(x) - 1).",
        sample(_KINKS, alpha=1.5),
        sample(_ANY),
        kink="the gradient at 0 is alpha",
        eager="torch.nn.functional.elu({x}, {alpha})",
    ),
    _activation(
        "selu(x)  y[...] = 1.7580993408473766 * expm1(x[...]) if x[...] <= 0 "
        "else 1.0507009873554805 * x[...]",
        "The self-normalising elu.",
        sample(_KINKS),
    ),
    _activation(
        "celu(x; alpha=1.0)  y[...] = alpha * expm1(x[...] / alpha) if x[...] <= 0 else x[...]",
        "The elu with a smooth first derivative.",
        sample(_KINKS, alpha=0.5),
        eager="torch.nn.functional.celu({x}, {alpha})",
    ),
    Operator(
        "gelu(x; approximate='none')  y[...] = x[...] * normal_cdf(x[...])",
        "x times the normal distribution function, or the tanh approximation of that.",
        declare=_gelu,
        kink="at inf it is inf, as in float64; torch's float32 kernel gives NaN (decision 0006)",
        eager="torch.nn.functional.gelu({x}, approximate={approximate})",
        samples=(
            sample(_ANY),
            sample(_FINITE),
            sample(_ANY, approximate="tanh"),
            sample(_FINITE, approximate="tanh"),
        ),
    ),
    _activation(
        "silu(x)  y[...] = x[...] * sigmoid(x[...])",
        "x times its sigmoid.",
        sample(_ANY),
        sample(_FINITE),
    ),
    Operator(
        "softplus(x; beta=1.0, threshold=20.0)  "
        "y[...] = x[...] if x[...] * beta > threshold else log1p(exp(x[...] * beta)) / beta",
        "The smooth relu; beyond the threshold it is x itself.",
        declare=_softplus,
        eager="torch.nn.functional.softplus({x}, {beta}, {threshold})",
        samples=(sample(_ANY), sample(_KINKS), sample(_FINITE, beta=2.0, threshold=5.0)),
    ),
    _activation(
        "mish(x)  y[...] = x[...] * tanh(x[...] if x[...] > 20 else log1p(exp(x[...])))",
        "x times the tanh of its softplus.",
        sample(_ANY),
        sample(_FINITE),
    ),
    _activation(
        "log_sigmoid(x)  y[...] = min(x[...], 0) - log1p(exp(-abs(x[...])))",
        "The logarithm of the sigmoid.",
        sample(_ANY),
        sample(_FINITE),
        kink="the gradient at 0 is one half, as everywhere else by continuity",
        eager="torch.nn.functional.logsigmoid({x})",
    ),
    _activation(
        "softsign(x)  y[...] = x[...] / (1 + abs(x[...]))",
        "x over one plus its magnitude.",
        sample(_FINITE),
    ),
    _activation(
        "tanhshrink(x)  y[...] = x[...] - tanh(x[...])",
        "x minus its tanh.",
        sample(_FINITE),
    ),
    _activation(
        "threshold(x; threshold, value)  y[...] = value if x[...] <= threshold else x[...]",
        "x above a threshold, else a number.",
        sample(_KINKS, threshold=0.5, value=-1.0),
        kink="the gradient at the threshold is 0",
        eager="torch.nn.functional.threshold({x}, {threshold}, {value})",
    ),
    _activation(
        "softshrink(x; lambd=0.5)  y[...] = 0 if x[...] >= -lambd and x[...] <= lambd "
        "else x[...] - lambd if x[...] > lambd else x[...] + lambd",
        "x moved towards 0 by a step; 0 within a step of it.",
        sample(_FINITE),
        sample("f[6] = -0.75, -0.25, 0, 0.25, nan, inf", lambd=0.25),
        kink="the gradient within a step, bounds included, is 0",
        eager="torch.nn.functional.softshrink({x}, {lambd})",
    ),
    _activation(
        "hardshrink(x; lambd=0.5)  y[...] = 0 if x[...] >= -lambd and x[...] <= lambd else x[...]",
        "x where it is farther than a step from 0, else 0.",
        sample(_KINKS),
        sample("f[5] = -0.75, -0.25, 0.25, nan, inf", lambd=0.25),
        kink="the gradient within a step, bounds included, is 0",
        eager="torch.nn.functional.hardshrink({x}, {lambd})",
    ),
    _activation(
        "prelu(x, slope)  y[...] = x[...] if x[...] > 0 else slope[...] * x[...]",
        "x where it is positive, else x times a slope that is learned.",
        sample(_ANY, "f[3]"),
        sample("f[4] = -2, 0, 1, -1", "f[1]"),
        kink="the gradient at 0 is the slope",
        eager="torch.ops.aten._prelu_kernel({x}, {slope})",
    ),
    Operator(
        "glu(x; dim=-1)  y[..., i<n] = x[..., i] * sigmoid(x[..., i+n])",
        "One half of a dim times the sigmoid of the other half.",
        declare=_glu,
        eager="torch.nn.functional.glu({x}, {dim})",
        samples=(sample("f[2, 6]"), sample("f[4, 3]", dim=0)),
    ),
)
