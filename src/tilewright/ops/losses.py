"""The page of losses.

The idea: a loss is a formula per row (or element) and a reduction.  Cross entropy goes by the
logits themselves: the row's largest and the logarithm of its sum are taken once, and the gradient
is `softmax - one hot`, never a matrix of log-probabilities.

This module does not know what a class or a target stands for.
"""

from tilewright.base.errors import UNKNOWN, Origin
from tilewright.graph.build import Builder
from tilewright.graph.ir import Node, Value
from tilewright.ops.nest import count, decimal, index, loops
from tilewright.ops.norms import log_statistics
from tilewright.ops.operator import (
    Attrs,
    Expand,
    Operand,
    Operator,
    Sample,
    Tangents,
    Vjp,
    sample,
    write,
)

REDUCTIONS = ("none", "mean", "sum")


def reduce_loss(builder: Builder, rows: Value, how: object, like: Value) -> Value:
    """Reduce elements in the type they are computed in; the result has the dtype of `like`."""
    assert how in REDUCTIONS, f"a loss has no reduction {how!r}"
    dtype = like.type.dtype
    if how == "none":
        return write(builder, "y[...] = l[...]", l=rows, dtype=dtype, name="loss")
    element = index(loops(rows.type.rank))
    if how == "sum":
        return write(builder, f"y[] += l[{element}]", l=rows, dtype=dtype, name="loss")
    total = write(builder, f"y[] += l[{element}]", l=rows, name="total")
    n = count(rows.type.shape, range(rows.type.rank))
    return write(builder, "y[] = t[] / n", t=total, n=n, dtype=dtype, name="loss")


def _elementwise(value: str) -> Expand:
    """A loss of one element `x[...]` and its target `t[...]`, written as a value."""

    def expand(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
        x, target = inputs
        given = {name: item for name, item in attrs.items() if isinstance(item, float | int)}
        dtype = x.type.dtype.compute
        rows = write(builder, f"y[...] = {value}", given, x=x, t=target, dtype=dtype, name="rows")
        return (reduce_loss(builder, rows, attrs["reduction"], x),)

    return expand


def _smooth_l1(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    if attrs["beta"] == 0:
        return _elementwise("abs(x[...] - t[...])")(builder, inputs, attrs)
    square = "0.5 * (x[...] - t[...]) * (x[...] - t[...]) / beta"
    return _elementwise(_straight_beyond("beta", "1", square))(builder, inputs, attrs)


def _straight_beyond(edge: str, slope: str, square: str) -> str:
    """Join a parabola and its tangents; a NaN falls to the parabola, whose gradient is NaN too."""
    z = "(x[...] - t[...])"
    below = f"-{slope} * ({z} + 0.5 * {edge})"
    above = f"{slope} * ({z} - 0.5 * {edge})"
    return f"{below} if {z} <= -{edge} else {above} if {z} >= {edge} else {square}"


def _held_vjp(edge: str, over: str = "") -> Vjp:
    """The gradients of such a parabola and its tangents: the distance, held to the edge."""

    def vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
        (dy,), (x, target), attrs = tangents, node.inputs, dict(node.attrs)
        if dy is None:
            return (None, None)
        at, how, origin = index(loops(x.type.rank)), attrs["reduction"], node.origin
        given = {name: item for name, item in attrs.items() if isinstance(item, float | int)}
        given["n"] = count(x.type.shape, range(x.type.rank)) if how == "mean" else 1
        z = f"(x[{at}] - t[{at}])"
        held = f"(-{edge} if {z} <= -{edge} else {edge} if {z} >= {edge} else {z}){over}"
        held = held if attrs[edge] else f"sign({z})"
        body = f"y[{at}] = dy[{at if how == 'none' else ''}] / n * {held}"
        dx = write(builder, body, given, dy=dy, x=x, t=target, dtype=x.type.dtype, origin=origin)
        return dx, write(builder, "y[...] = -d[...]", d=dx, dtype=target.type.dtype, origin=origin)

    return vjp


def _kl_div(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    how = attrs["reduction"]
    if attrs["log_target"]:
        value = "exp(t[...]) * (t[...] - x[...])"
    else:
        value = "t[...] * log(t[...]) - t[...] * x[...] if t[...] > 0 else 0 - t[...] * x[...]"
    if how != "batchmean":
        return _elementwise(value)(builder, inputs, attrs)
    (total,) = _elementwise(value)(builder, inputs, {"reduction": "sum"})
    size = inputs[0].type.shape[0]
    assert isinstance(size, int), "sizes are known numbers"
    return (write(builder, "y[] = t[] / n", t=total, n=size, name="loss"),)


def _logits(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    """Binary cross entropy from logits: max(x, 0) - x t + log(1 + exp(-|x|)), weighted."""
    x, target, *weights = inputs
    dtype = x.type.dtype.compute
    if not weights:
        value = "(1 - t[...]) * x[...] - (min(x[...], 0) - log1p(exp(-abs(x[...]))))"
        rows = write(builder, f"y[...] = {value}", x=x, t=target, dtype=dtype, name="rows")
    else:
        value = "(1 - t[...]) * x[...] - ((p[...] - 1) * t[...] + 1) * "
        value += "(min(x[...], 0) - log1p(exp(-abs(x[...]))))"
        rows = write(
            builder, f"y[...] = {value}", x=x, t=target, p=weights[0], dtype=dtype, name="rows"
        )
    return (reduce_loss(builder, rows, attrs["reduction"], x),)


_BINARY = (
    "(t[...] - 1) * (-100 if log1p(-x[...]) < -100 else log1p(-x[...])) "
    "- t[...] * (-100 if log(x[...]) < -100 else log(x[...]))"
)


def _binary_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    (dy,) = tangents
    if dy is None:
        return None, None
    x, target = node.inputs
    origin, dtype = node.origin, x.type.dtype
    how = node.attr("reduction")
    g = "d[...]" if how == "none" else "d[]"
    n = count(x.type.shape, range(x.type.rank)) if how == "mean" else 1
    # torch keeps the denominator above the float32 nearest to 1e-12.
    body = (
        f"y[...] = {g} / n * (x[...] - t[...]) / max((1 - x[...]) * x[...], 9.999999960041972e-13)"
    )
    dx = write(builder, body, d=dy, x=x, t=target, n=n, dtype=dtype, origin=origin)
    if target.type.dtype.kind != "float":
        return dx, None
    body = f"y[...] = {g} / n * (log1p(-x[...]) - log(x[...]))"
    dt = write(builder, body, d=dy, x=x, n=n, dtype=target.type.dtype, origin=origin)
    return dx, dt


def _multi_margin(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    x, target, *weights = inputs
    power = attrs["p"]
    assert power in (1, 2), f"a margin is counted to the power 1 or 2, not {power}"
    away = "(m - x[i, t[i]] + x[i, j])"
    value = away if power == 1 else f"{away} * {away}"
    scale = "w[t[i]] * " if weights else ""
    given: dict[str, Operand] = {"w": weights[0]} if weights else {}
    body = f"y[i] += ({scale}{value} / n if {away} > 0 else 0) where j != t[i]"
    dtype = x.type.dtype.compute
    given |= {"m": decimal(attrs["margin"]), "n": count(x.type.shape, (1,))}
    rows = write(builder, body, given, x=x, t=target, dtype=dtype, name="rows")
    return (reduce_loss(builder, rows, attrs["reduction"], x),)


# ------------------------------------------------------------------------------------ class targets


def _class_index(x: Value) -> tuple[str, str, str]:
    """Return the index of a row, of an element, and of the element of the row's target `t`."""
    names = loops(x.type.rank)
    dim = 0 if len(names) == 1 else 1
    row = index([name for at, name in enumerate(names) if at != dim])
    picked = list(names)
    picked[dim] = f"t[{row}]"
    return row, index(names), index(picked)


def _class_loop(x: Value) -> str:
    return loops(x.type.rank)[0 if x.type.rank == 1 else 1]


def _nll_loss(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    x, target, *weights = inputs
    row, _, picked = _class_index(x)
    scale = f"w[t[{row}]] * " if weights else ""
    given = {"w": weights[0]} if weights else {}
    ignored = attrs["ignore_index"]
    assert isinstance(ignored, int), "an ignored class is a number"
    body = f"y[{row}] = -({scale}x[{picked}]) where t[{row}] != g"
    rows = write(builder, body, given, x=x, t=target, g=ignored, dtype=x.type.dtype.compute)
    if attrs["reduction"] != "mean":
        return (reduce_loss(builder, rows, attrs["reduction"], x),)
    return (_weighted_mean(builder, rows, _weight_total(builder, inputs, ignored), x),)


def _weight_total(
    builder: Builder, inputs: tuple[Value, ...], ignored: int, origin: Origin = UNKNOWN
) -> Value:
    """Sum the weights of the rows that are not ignored (1 each where there are none)."""
    x, target, *weights = inputs
    row, _, _ = _class_index(x)
    given = {"w": weights[0]} if weights else {}
    scale = f"w[t[{row}]]" if weights else "1"
    body = f"y[] += 0 if t[{row}] == g else {scale}"
    dtype = x.type.dtype.compute
    return write(
        builder, body, given, t=target, g=ignored, dtype=dtype, name="weight", origin=origin
    )


def _weighted_mean(builder: Builder, rows: Value, weight: Value, like: Value) -> Value:
    element = index(loops(rows.type.rank))
    total = write(builder, f"y[] += l[{element}]", l=rows, name="total")
    body = "y[] = t[] / w[]"
    return write(builder, body, t=total, w=weight, dtype=like.type.dtype, name="loss")


def _cross_entropy(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    x, target, *weights = inputs
    row, element, picked = _class_index(x)
    top, log_total = log_statistics(builder, x, row, element)
    smooth, compute = decimal(attrs["label_smoothing"]), x.type.dtype.compute
    given: dict[str, Operand] = {"x": x, "m": top, "s": log_total, **_smoothing(x, smooth)}
    if weights:
        given["w"] = weights[0]
    if target.type.dtype.kind == "float":
        body = _soft_rows(x, weighted=bool(weights), smooth=smooth)
        rows = write(builder, body, given, t=target, dtype=compute, name="rows")
        return (reduce_loss(builder, rows, attrs["reduction"], x),)
    ignored = attrs["ignore_index"]
    assert isinstance(ignored, int), "an ignored class is a number"
    scale = f"w[t[{row}]] * " if weights else ""
    lost = f"{scale}(s[{row}] - (x[{picked}] - m[{row}]))"
    if smooth:
        each = f"w[{_class_loop(x)}] * " if weights else ""
        body = f"y[{row}] += {each}(s[{row}] - (x[{element}] - m[{row}]))"
        given["u"] = write(builder, body, given, dtype=compute, name="smooth")
        lost = f"(1 - e) * ({lost}) + q * u[{row}]"
    body = f"y[{row}] = 0 if t[{row}] == g else {lost}"
    rows = write(builder, body, given, t=target, g=ignored, dtype=compute, name="rows")
    if attrs["reduction"] != "mean":
        return (reduce_loss(builder, rows, attrs["reduction"], x),)
    return (_weighted_mean(builder, rows, _weight_total(builder, inputs, ignored), x),)


def _smoothing(x: Value, smooth: float) -> dict[str, float]:
    """Return the attributes of a smoothed target: e, and its share q for each class."""
    classes = x.type.shape[0 if x.type.rank == 1 else 1]
    assert isinstance(classes, int), "sizes are known numbers"
    return {"e": smooth, "q": smooth / max(classes, 1)}


def _soft_target(x: Value, *, weighted: bool, smooth: float) -> str:
    _, element, _ = _class_index(x)
    target = f"((1 - e) * t[{element}] + q)" if smooth else f"t[{element}]"
    return f"w[{_class_loop(x)}] * {target}" if weighted else target


def _soft_rows(x: Value, *, weighted: bool, smooth: float) -> str:
    row, element, _ = _class_index(x)
    target = _soft_target(x, weighted=weighted, smooth=smooth)
    return f"y[{row}] += {target} * (s[{row}] - (x[{element}] - m[{row}]))"


def _cross_entropy_vjp(builder: Builder, node: Node, tangents: Tangents) -> Tangents:
    (dy,) = tangents
    if dy is None:
        return (None,) * len(node.inputs)
    if node.inputs[1].type.dtype.kind == "float":
        return _soft_vjp(builder, node, dy)
    x, target, *weights = node.inputs
    origin, compute = node.origin, x.type.dtype.compute
    row, element, _ = _class_index(x)
    attrs = dict(node.attrs)
    ignored, smooth = attrs["ignore_index"], decimal(attrs["label_smoothing"])
    assert isinstance(ignored, int), "an ignored class is a number"
    top, log_total = log_statistics(builder, x, row, element, origin)
    given: dict[str, Operand] = {"d": dy, "x": x, "t": target, "m": top, "s": log_total}
    given |= {"g": ignored, **_smoothing(x, smooth)}
    gain = f"d[{row}]" if attrs["reduction"] == "none" else "d[]"
    if attrs["reduction"] == "mean":
        given["n"] = _weight_total(builder, node.inputs, ignored, origin)
        gain = "d[] / n[]"
    loop, chosen, whole = _class_loop(x), "1", "1"
    each = "q"
    if weights:
        given["w"] = weights[0]
        chosen, each = f"w[t[{row}]]", f"q * w[{loop}]"
    if weights and smooth:
        given["z"] = write(builder, "y[] += w[i]", w=weights[0], dtype=compute, origin=origin)
        whole = "z[]"
    share = f"exp(x[{element}] - m[{row}] - s[{row}])"
    hit = f"({chosen} if {loop} == t[{row}] else 0)"
    inner = f"{share} * {chosen} - {hit}" if weights else f"{share} - {hit}"
    if smooth:
        inner = f"{share} * ((1 - e) * {chosen} + q * {whole}) - (1 - e) * {hit} - {each}"
        if not weights:  # the weights of a row add up to 1
            inner = f"{share} - (1 - e) * {hit} - {each}"
    body = f"y[{element}] = 0 if t[{row}] == g else {gain} * ({inner})"
    dx = write(builder, body, given, dtype=x.type.dtype, origin=origin)
    return (dx, *(None,) * (len(node.inputs) - 1))


def _soft_vjp(builder: Builder, node: Node, dy: Value) -> Tangents:
    """Gradients where the target is a distribution over classes."""
    x, target, *weights = node.inputs
    origin, compute = node.origin, x.type.dtype.compute
    row, element, _ = _class_index(x)
    attrs = dict(node.attrs)
    smooth = decimal(attrs["label_smoothing"])
    top, log_total = log_statistics(builder, x, row, element, origin)
    n, gain = 1, f"d[{row}]" if attrs["reduction"] == "none" else "d[]"
    if attrs["reduction"] == "mean":
        n = count(x.type.shape, [at for at in range(x.type.rank) if at != 1])
        n = 1 if x.type.rank == 1 else n
    given: dict[str, Operand] = {"n": n, **_smoothing(x, smooth)}
    if weights:
        given["w"] = weights[0]
    share = _soft_target(x, weighted=bool(weights), smooth=smooth)
    body = f"y[{row}] += {share}"
    mass = write(builder, body, given, t=target, dtype=compute, origin=origin)
    given |= {"d": dy, "x": x, "m": top, "s": log_total}
    body = f"y[{element}] = {gain} / n * "
    body += f"(exp(x[{element}] - m[{row}] - s[{row}]) * z[{row}] - {share})"
    dx = write(builder, body, given, t=target, z=mass, dtype=x.type.dtype, origin=origin)
    scale = f"w[{_class_loop(x)}] * " if weights else ""
    body = f"y[{element}] = {gain} / n * (1 - e) * {scale}(s[{row}] - (x[{element}] - m[{row}]))"
    dt = write(builder, body, given, dtype=target.type.dtype, origin=origin)
    if not weights:
        return dx, dt
    share = f"((1 - e) * t[{element}] + q)" if smooth else f"t[{element}]"
    body = f"y[{_class_loop(x)}] += {gain} / n * {share} * (s[{row}] - (x[{element}] - m[{row}]))"
    dw = write(builder, body, given, t=target, dtype=weights[0].type.dtype, origin=origin)
    return dx, dt, dw


def _difference(
    name: str,
    doc: str,
    expand: Expand,
    *samples: Sample,
    option: str = "",
    default: object = None,
    kink: str = "",
    vjp: Vjp | None = None,
) -> Operator:
    """A loss of x and a target of its shape, with at most one option beside the reduction."""
    attribute, passed = (
        (f", {option}={default!r}", f", {option}={{{option}}}") if option else ("", "")
    )
    return Operator(
        f"{name}(x, target; reduction='mean'{attribute})",
        doc,
        expand=expand,
        vjp=vjp,
        vjp_reason="one choice for each element in place of a sum over pieces" if vjp else "",
        kink=kink,
        eager=f"torch.nn.functional.{name}({{x}}, {{target}}, reduction={{reduction}}{passed})",
        samples=samples,
    )


_PAIR = (
    sample("f[2, 3]", "f[2, 3]"),
    sample("f[4] = 0, 1, 2, -1", "f[4] = 0, 2, 2, 1", reduction="sum"),
    sample("f[2, 3]", "f[2, 3]", reduction="none"),
)

PAGE = (
    _difference(
        "mse_loss",
        "The squared difference.",
        _elementwise("(x[...] - t[...]) * (x[...] - t[...])"),
        *_PAIR,
    ),
    _difference(
        "l1_loss",
        "The magnitude of the difference.",
        _elementwise("abs(x[...] - t[...])"),
        *_PAIR,
        kink="the gradient at 0 is 0",
    ),
    _difference(
        "smooth_l1_loss",
        "Squared below beta, straight above.",
        _smooth_l1,
        *_PAIR,
        sample("f[4] = 0, 1, 2, -3", "f[4] = 0, 2, 2, inf", beta=0.5),
        sample("f[2, 3]", "f[2, 3]", beta=0.0),
        option="beta",
        default=1.0,
        vjp=_held_vjp("beta", " / beta"),
    ),
    _difference(
        "huber_loss",
        "Squared up to delta, straight above.",
        _elementwise(
            _straight_beyond("delta", "delta", "0.5 * (x[...] - t[...]) * (x[...] - t[...])")
        ),
        *_PAIR,
        sample("f[4] = 0, 1, 2, -3", "f[4] = 0, 2, 2, inf", delta=0.5),
        option="delta",
        default=1.0,
        vjp=_held_vjp("delta"),
    ),
    _difference(
        "kl_div",
        "The divergence of a distribution from one given by its logarithm.",
        _kl_div,
        sample("f[2, 3]", "f[2, 3] > 0", reduction="none"),
        sample("f[2, 2]", "c[2, 2] = 0, 1, 0.25, 0.75", reduction="batchmean"),
        sample("f[2, 3]", "f[2, 3]", reduction="sum", log_target=True),
        option="log_target",
        default=False,
    ),
    _difference(
        "soft_margin_loss",
        "The logarithm of one plus exp(-target x).",
        _elementwise("log1p(exp(-t[...] * x[...]))"),
        sample("f[2, 3]", "c[2, 3] > 0"),
        sample("f[4] = 0, 1, 2, -1", "c[4] = 1, -1, 1, 1", reduction="none"),
    ),
    Operator(
        "multi_margin_loss(x, target, weight?; p=1, margin=1.0, reduction='mean')",
        "How far each class comes within a margin of a row's target, to the power p.",
        expand=_multi_margin,
        kink="on the margin the gradient is 0",
        eager="torch.nn.functional.multi_margin_loss({x}, {target}, {p}, {margin}, {weight}, "
        "reduction={reduction})",
        samples=(
            sample("f[4, 3]", "i[4] < 3"),
            sample("f[4, 3]", "i[4] < 3", "c[3] > 0", p=2, margin=0.5, reduction="none"),
            sample("f[2, 3] = 1, 0, 2, 0, 0, 0", "i[2] = 0, 1", reduction="sum"),
        ),
    ),
    Operator(
        "binary_cross_entropy(x, target; reduction='mean')",
        "The cross entropy of probabilities; logarithms below -100 count as -100.",
        expand=_elementwise(_BINARY),
        vjp=_binary_vjp,
        vjp_reason="at 0 and 1 the derivative of the logarithm is infinite; torch limits it",
        eager="torch.nn.functional.binary_cross_entropy({x}, {target}, reduction={reduction})",
        samples=(
            sample("f[5] = 0, 1, 0.25, 0, 0.75", "f[5] = 0, 1, 1, 1, 0.5"),
            sample("f[2] = 0.125, 0.5", "f[2] = 0, 1", reduction="none"),
            sample("f[2] = 0.125, 0.5", "f[2] = 0, 1", reduction="sum"),
        ),
    ),
    Operator(
        "binary_cross_entropy_with_logits(x, target, pos_weight?; reduction='mean')",
        "The cross entropy of logits.",
        expand=_logits,
        eager="torch.nn.functional.binary_cross_entropy_with_logits("
        "{x}, {target}, pos_weight={pos_weight}, reduction={reduction})",
        samples=(
            sample("f[2, 3]", "f[2, 3]"),
            sample("f[5] = 0, 100, -100, 800, -800", "f[5] = 0.5, 0, 1, 1, 0", reduction="none"),
            sample("f[2, 3]", "f[2, 3]", "c[3] > 0", reduction="sum"),
        ),
    ),
    Operator(
        "nll_loss(x, target, weight?; reduction='mean', ignore_index=-100)",
        "Minus the log-probability of each row's target class.",
        expand=_nll_loss,
        eager="torch.nn.functional.nll_loss({x}, {target}, {weight}, "
        "ignore_index={ignore_index}, reduction={reduction})",
        samples=(
            sample("f[4, 3]", "i[4] < 3"),
            sample("f[4, 3]", "i[4] < 3", "c[3] > 0", ignore_index=1),
            sample("f[2, 3, 2]", "i[2, 2] < 3", reduction="sum"),
            sample("f[4, 3]", "i[4] = 0, -100, 2, 2", reduction="none"),
        ),
    ),
    Operator(
        "cross_entropy(x, target, weight?; "
        "reduction='mean', ignore_index=-100, label_smoothing=0.0)",
        "Minus the log-softmax of each row's target: a class, or a distribution over classes.",
        expand=_cross_entropy,
        vjp=_cross_entropy_vjp,
        vjp_reason="softmax - one hot in one pass, where the derived one scatters and sums again",
        forward_derived=True,  # the mean of no rows changes by NaN, as in torch
        kink="an ignored row has the gradient 0, also where no row is left and the mean is NaN",
        eager="torch.nn.functional.cross_entropy({x}, {target}, {weight}, "
        "ignore_index={ignore_index}, reduction={reduction}, label_smoothing={label_smoothing})",
        samples=(
            sample("f[4, 3]", "i[4] < 3"),
            sample("f[3]", "i[] = 1"),
            sample("f[4, 3]", "i[4] = 0, -100, 2, 2"),
            sample("f[2, 3]", "i[2] = -100, -100"),
            sample("f[4, 3]", "i[4] = 0, 1, 2, 1", "c[3] > 0", ignore_index=1),
            sample("f[2, 3, 2]", "i[2, 2] < 3", reduction="sum"),
            sample("f[4, 3]", "i[4] = 0, -100, 2, 2", reduction="none", label_smoothing=0.1),
            sample("f[4, 3]", "i[4] = 0, -100, 2, 2", "c[3] > 0", label_smoothing=0.1),
            sample("f[2, 3] = 1000, 1001, 0, -inf, 0, 1", "i[2] = 0, 2"),
            sample("f[4, 3]", "f[4, 3] > 0"),
            sample("f[2, 3, 2]", "f[2, 3, 2] > 0", "f[3] > 0", label_smoothing=0.2),
            sample("f[4, 3]", "f[4, 3] > 0", reduction="none"),
        ),
    ),
)
