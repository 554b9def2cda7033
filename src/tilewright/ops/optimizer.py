"""The page of optimizers: one step for one parameter, in torch's order.

The idea: each moved tensor is one pointwise formula.  The learning rate and the number of the step
are tensors of rank 0, so that a schedule changes no program; what depends on them alone is computed
once, in their own type.  Momentum and beta1, which some schedules move too, are attributes, or such
tensors where the attribute is None.

This module does not know parameter groups, nor where gradients come from.
"""

from tilewright.graph.build import Builder
from tilewright.graph.ir import Value
from tilewright.ops.nest import decimal
from tilewright.ops.operator import Attrs, Operand, Operator, sample, write


def _gradient(value: Value, attrs: Attrs, *, decay: bool) -> tuple[str, dict[str, Operand]]:
    """Return the gradient's text: its sign turned to maximise, weight decay added if asked."""
    text = "-g[...]" if attrs["maximize"] else "g[...]"
    weight = decimal(attrs["weight_decay"])
    if not decay or weight == 0:
        return text, {"g": value}
    return f"({text} + wd * p[...])", {"g": value, "wd": weight}


def _moving(attrs: Attrs, name: str, operands: list[Value]) -> tuple[str, Operand]:
    """Return how a body reads a setting, and what it is: a number, or the last of the operands."""
    if attrs[name] is None:
        return f"{name}[]", operands.pop()
    return name, decimal(attrs[name])


def _sgd(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    parameter, gradient, rate, *buffers = inputs
    dtype = parameter.type.dtype
    by, momentum = _moving(attrs, "momentum", buffers)
    g, given = _gradient(gradient, attrs, decay=True)
    step: dict[str, Operand] = {"p": parameter, "r": rate, **given}
    if momentum == 0:
        body = f"y[...] = p[...] - r[] * {g}"
        return (write(builder, body, step, dtype=dtype, name="parameter"),)
    (buffer,) = buffers
    decayed: dict[str, Operand] = {"p": parameter} if "wd" in given else {}
    if attrs["first"]:
        moved = write(
            builder, f"y[...] = {g}", {**decayed, **given}, dtype=buffer.type.dtype, name="momentum"
        )
    else:
        body = f"y[...] = {by} * b[...] + (1 - dampening) * {g}"
        moved = write(
            builder, body, {**decayed, **given}, b=buffer, momentum=momentum,
            dampening=decimal(attrs["dampening"]), dtype=buffer.type.dtype, name="momentum",
        )  # fmt: skip
    if attrs["nesterov"]:
        body = f"y[...] = p[...] - r[] * ({g} + {by} * b[...])"
        made = write(builder, body, step, b=moved, momentum=momentum, dtype=dtype, name="parameter")
    else:
        body = "y[...] = p[...] - r[] * b[...]"
        made = write(builder, body, p=parameter, r=rate, b=moved, dtype=dtype, name="parameter")
    return made, moved


def _adam(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    parameter, gradient, rate, step, mean, square, *largest = inputs
    dtype = parameter.type.dtype
    by, first = _moving(attrs, "beta1", largest)
    second, as_p = decimal(attrs["beta2"]), dtype.compute.name
    decoupled = bool(attrs["decoupled_weight_decay"])
    g, given = _gradient(gradient, attrs, decay=not decoupled)
    decayed: dict[str, Operand] = {"p": parameter} if "wd" in given else {}
    given = {**decayed, **given}
    share = f"{as_p}(1 - {by})" if isinstance(first, Value) else f"(1 - {by})"
    body = f"y[...] = m[...] + {share} * ({g} - m[...])"
    m = write(builder, body, given, m=mean, beta1=first, dtype=mean.type.dtype, name="mean")
    body = f"y[...] = beta * v[...] + (1 - beta) * {g} * {g}"
    v = write(builder, body, given, v=square, beta=second, dtype=square.type.dtype, name="square")
    moved = [m, v]
    bound = v
    if attrs["amsgrad"]:
        body = "y[...] = max(u[...], v[...])"
        bound = write(builder, body, u=largest[0], v=v, name="largest")
        moved.append(bound)
    body = f"y[] = r[] / (1 - pow({by}, s[]))"
    size = write(builder, body, r=rate, s=step, beta1=first, name="size")
    root = write(builder, "y[] = sqrt(1 - pow(b, s[]))", s=step, b=second, name="root")
    operands: dict[str, Operand] = {"p": parameter}
    kept = "p[...]"
    if decoupled:
        body, weight = "y[] = 1 - r[] * wd", decimal(attrs["weight_decay"])
        operands["d"] = write(builder, body, r=rate, wd=weight, name="decay")
        kept = f"p[...] * {as_p}(d[])"
    body = f"y[...] = {kept} - {as_p}(s[]) * (m[...] / (sqrt(v[...]) / {as_p}(q[]) + eps))"
    made = write(
        builder, body, operands, s=size, m=m, v=bound, q=root,
        eps=decimal(attrs["eps"]), dtype=dtype, name="parameter",
    )  # fmt: skip
    return made, *moved


def _adagrad(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    parameter, gradient, rate, step, total = inputs
    dtype = parameter.type.dtype
    g, given = _gradient(gradient, attrs, decay=True)
    decayed: dict[str, Operand] = {"p": parameter} if "wd" in given else {}
    body = f"y[...] = s[...] + {g} * {g}"
    total = write(
        builder, body, {**decayed, **given}, s=total, dtype=total.type.dtype, name="total"
    )
    body = "y[] = r[] / (1 + (s[] - 1) * lr_decay)"
    size = write(builder, body, r=rate, s=step, lr_decay=decimal(attrs["lr_decay"]), name="size")
    body = f"y[...] = p[...] - {dtype.compute.name}(r[]) * {g} / (sqrt(s[...]) + eps)"
    made = write(
        builder, body, {"p": parameter, **given}, r=size, s=total, eps=decimal(attrs["eps"]),
        dtype=dtype, name="parameter",
    )  # fmt: skip
    return made, total


def _rmsprop(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    parameter, gradient, rate, square, *rest = inputs
    dtype = parameter.type.dtype
    by, momentum = _moving(attrs, "momentum", rest)
    g, given = _gradient(gradient, attrs, decay=True)
    decayed: dict[str, Operand] = {"p": parameter} if "wd" in given else {}
    terms: dict[str, Operand] = {**decayed, **given}
    share = decimal(attrs["alpha"])
    body = f"y[...] = alpha * v[...] + (1 - alpha) * {g} * {g}"
    v = write(builder, body, terms, v=square, alpha=share, dtype=square.type.dtype, name="square")
    moved = [v]
    size: dict[str, Operand] = {"v": v, "eps": decimal(attrs["eps"])}
    deviation = "(sqrt(v[...]) + eps)"
    buffer = None if momentum == 0 else rest.pop(0)
    mean = None
    if attrs["centered"]:
        (before,) = rest
        body = f"y[...] = m[...] + (1 - alpha) * ({g} - m[...])"
        mean = write(
            builder, body, terms, m=before, alpha=share, dtype=before.type.dtype, name="mean"
        )
        size["m"] = mean
        deviation = "(sqrt(v[...] - m[...] * m[...]) + eps)"
    if buffer is None:
        body = f"y[...] = p[...] - r[] * {g} / {deviation}"
        operands = {"p": parameter, "r": rate, **given, **size}
        made = write(builder, body, operands, dtype=dtype, name="parameter")
    else:
        body = f"y[...] = {by} * b[...] + {g} / {deviation}"
        buffer = write(
            builder, body, {**terms, **size}, b=buffer, momentum=momentum,
            dtype=buffer.type.dtype, name="momentum",
        )  # fmt: skip
        body = "y[...] = p[...] - r[] * b[...]"
        made = write(builder, body, p=parameter, r=rate, b=buffer, dtype=dtype, name="parameter")
        moved.append(buffer)
    return (made, *moved) if mean is None else (made, *moved, mean)


def _adadelta(builder: Builder, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[Value, ...]:
    parameter, gradient, rate, square, moves = inputs
    dtype, share, eps = parameter.type.dtype, decimal(attrs["rho"]), decimal(attrs["eps"])
    g, given = _gradient(gradient, attrs, decay=True)
    decayed: dict[str, Operand] = {"p": parameter} if "wd" in given else {}
    terms: dict[str, Operand] = {**decayed, **given}
    body = f"y[...] = rho * v[...] + (1 - rho) * {g} * {g}"
    v = write(builder, body, terms, v=square, rho=share, dtype=square.type.dtype, name="square")
    body = f"y[...] = sqrt(u[...] + eps) / sqrt(v[...] + eps) * {g}"
    move = write(builder, body, terms, u=moves, v=v, eps=eps, dtype=dtype, name="move")
    body = "y[...] = rho * u[...] + (1 - rho) * d[...] * d[...]"
    u = write(builder, body, u=moves, d=move, rho=share, dtype=moves.type.dtype, name="moves")
    body = "y[...] = p[...] - r[] * d[...]"
    made = write(builder, body, p=parameter, r=rate, d=move, dtype=dtype, name="parameter")
    return made, v, u


PAGE = (
    Operator(
        "sgd(p, g, lr, momentum_buffer?, momentum_now?; momentum=0.0, dampening=0.0, "
        "weight_decay=0.0, nesterov=False, maximize=False, first=False)",
        "One step of SGD; `first` begins the momentum with the gradient, as torch does.",
        expand=_sgd,
        samples=(
            sample("f[4]", "f[4]", "f[] = 0.1"),
            sample("f[4]", "f[4]", "f[] = 0.1", weight_decay=0.01, maximize=True),
            sample("f[4]", "f[4]", "f[] = 0.1", "f[4]", momentum=0.9, dampening=0.5),
            sample("f[4]", "f[4]", "f[] = 0.1", "f[4]", momentum=0.9, first=True,
                   weight_decay=0.1),
            sample("f[4]", "f[4]", "f[] = 0.1", "f[4]", momentum=0.9, nesterov=True,
                   weight_decay=0.1),
            sample("f[4]", "f[4]", "f[] = 0.1", "f[4]", "f[] = 0.9", momentum=None, nesterov=True),
        ),
    ),
    Operator(
        "adam(p, g, lr, step, exp_avg, exp_avg_sq, max_exp_avg_sq?, beta1_now?; beta1=0.9, "
        "beta2=0.999, eps=1e-08, weight_decay=0.0, amsgrad=False, maximize=False, "
        "decoupled_weight_decay=False)",
        "One step of Adam, or of AdamW where the decay is decoupled; `step` counts from 1 and is "
        "that of this step.",
        expand=_adam,
        samples=(
            sample("f[4]", "f[4]", "f[] = 0.1", "f[] = 1", "f[4]", "f[4] > 0"),
            sample("f[4]", "f[4]", "f[] = 0.1", "f[] = 7", "f[4]", "f[4] > 0", beta1=0.8,
                   beta2=0.95, eps=1e-4, weight_decay=0.1, maximize=True),
            sample("f[4]", "f[4]", "f[] = 0.1", "f[] = 7", "f[4]", "f[4] > 0", weight_decay=0.1,
                   decoupled_weight_decay=True),
            sample("f[4]", "f[4]", "f[] = 0.1", "f[] = 7", "f[4]", "f[4] > 0", "f[4] > 0",
                   amsgrad=True),
            sample("f[4]", "f[4]", "f[] = 0.1", "f[] = 7", "f[4]", "f[4] > 0", "f[] = 0.8",
                   beta1=None),
        ),
    ),
    Operator(
        "adagrad(p, g, lr, step, sum; lr_decay=0.0, eps=1e-10, weight_decay=0.0, maximize=False)",
        "One step of Adagrad; `step` counts from 1 and is that of this step.",
        expand=_adagrad,
        samples=(
            sample("f[4]", "f[4]", "f[] = 0.1", "f[] = 1", "f[4] > 0"),
            sample("f[4]", "f[4]", "f[] = 0.1", "f[] = 7", "f[4] > 0", lr_decay=0.1, eps=1e-4,
                   weight_decay=0.1, maximize=True),
        ),
    ),
    Operator(
        "rmsprop(p, g, lr, square_avg, momentum_buffer?, grad_avg?, momentum_now?; alpha=0.99, "
        "eps=1e-08, weight_decay=0.0, momentum=0.0, centered=False, maximize=False)",
        "One step of RMSprop; centred, it divides by the deviation about the mean gradient.",
        expand=_rmsprop,
        samples=(
            sample("f[4]", "f[4]", "f[] = 0.1", "f[4] > 0"),
            sample("f[4]", "f[4]", "f[] = 0.1", "f[4] > 0", "f[4]", alpha=0.5, eps=1e-4,
                   weight_decay=0.1, momentum=0.9, maximize=True),
            # The second moment exceeds the square of the first, as it does in a real state.
            sample("f[4]", "f[4]", "f[] = 0.1", "f[4] > 9", "f[4]", centered=True),
            sample("f[4]", "f[4]", "f[] = 0.1", "f[4] > 9", "f[4]", "f[4]", "f[] = 0.9",
                   momentum=None, centered=True),
        ),
    ),
    Operator(
        "adadelta(p, g, lr, square_avg, acc_delta; rho=0.9, eps=1e-06, weight_decay=0.0, "
        "maximize=False)",
        "One step of Adadelta (Zeiler, 2012).",
        expand=_adadelta,
        samples=(
            sample("f[4]", "f[4]", "f[] = 0.1", "f[4] > 0", "f[4] > 0"),
            sample("f[4]", "f[4]", "f[] = 0.1", "f[4] > 0", "f[4] > 0", rho=0.5, eps=1e-4,
                   weight_decay=0.1, maximize=True),
        ),
    ),
)  # fmt: skip
