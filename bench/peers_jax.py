"""The models and their training steps in JAX, as a JAX user would write them.

The idea: the same weights, batch and optimizer as every contender; arrays keep torch's names, but
the layouts that suit XLA (linear weights `[in, out]`, images channels-last).  The whole step is one
`jax.jit` whose parameters and state are donated.  Runs in the peers' environment and knows neither
torch nor this package.  Dims: b batch, t position, d width, h heads, e per head, v vocabulary.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax  # type: ignore[import-not-found]
import jax.numpy as jnp  # type: ignore[import-not-found]
import numpy as np
from jax import Array, lax

from bench.protocol import Prepare, Running, sample, serve

Weights = dict[str, Array]
Forward = Callable[[Weights, Weights, Array, bool], tuple[Array, Weights]]
"""(weights, buffers, inputs, training) to (output, new buffers)."""

CHECKED_STEPS = 3


# Models ---------------------------------------------------------------------------------------


def _linear(w: Weights, name: str, x: Array) -> Array:
    return x @ w[f"{name}.weight"] + w[f"{name}.bias"]


def _layer_norm(w: Weights, name: str, x: Array) -> Array:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def mlp(w: Weights, buffers: Weights, x_bi: Array, training: bool) -> tuple[Array, Weights]:
    """Linear layers with a ReLU between them."""
    del training
    count = len(w) // 2
    x = x_bi
    for i in range(count - 1):
        x = jax.nn.relu(_linear(w, f"layers.{i}", x))
    return _linear(w, f"layers.{count - 1}", x), buffers


def gpt(heads: int) -> Forward:
    """GPT-2's decoder with a tied head."""

    def attention(w: Weights, name: str, x_btd: Array) -> Array:
        b, t, d = x_btd.shape
        parts = jnp.split(_linear(w, f"{name}.qkv", x_btd), 3, axis=-1)
        q, k, v = (part.reshape(b, t, heads, d // heads) for part in parts)
        y_bthe = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        return _linear(w, f"{name}.out", y_bthe.reshape(b, t, d))

    def forward(w: Weights, buffers: Weights, ids_bt: Array, training: bool) -> Any:
        del training
        x = w["tokens.weight"][ids_bt] + w["positions.weight"][: ids_bt.shape[1]]
        layers = sum(name.endswith("qkv.bias") for name in w)
        for i in range(layers):
            block = f"blocks.{i}"
            x = x + attention(w, f"{block}.attention", _layer_norm(w, f"{block}.norm_attention", x))
            y = _linear(w, f"{block}.mlp.up", _layer_norm(w, f"{block}.norm_mlp", x))
            x = x + _linear(w, f"{block}.mlp.down", jax.nn.gelu(y, approximate=True))
        return _layer_norm(w, "norm", x) @ w["tokens.weight"].T, buffers

    return forward


def lstm(w: Weights, buffers: Weights, ids_bt: Array, training: bool) -> tuple[Array, Weights]:
    """LSTM layers between an embedding and a head; the input's products are made for all steps."""
    del training

    def layer(number: int, x_tbd: Array) -> Array:
        bias = w[f"lstm.bias_ih_l{number}"] + w[f"lstm.bias_hh_l{number}"]
        recurrent = w[f"lstm.weight_hh_l{number}"]

        def cell(carry: tuple[Array, Array], given: Array) -> tuple[tuple[Array, Array], Array]:
            state, memory = carry
            opened, kept, new, shown = jnp.split(given + state @ recurrent, 4, axis=-1)
            sigmoid = jax.nn.sigmoid
            memory = sigmoid(kept) * memory + sigmoid(opened) * jnp.tanh(new)
            state = sigmoid(shown) * jnp.tanh(memory)
            return (state, memory), state

        given = x_tbd @ w[f"lstm.weight_ih_l{number}"] + bias
        zeros = jnp.zeros((x_tbd.shape[1], recurrent.shape[0]), x_tbd.dtype)
        states: Array = lax.scan(cell, (zeros, zeros), given)[1]
        return states

    x = w["tokens.weight"][ids_bt].swapaxes(0, 1)
    for number in range(sum(name.startswith("lstm.weight_hh") for name in w)):
        x = layer(number, x)
    return _linear(w, "head", x.swapaxes(0, 1)), buffers


def resnet18(w: Weights, buffers: Weights, x_bchw: Array, training: bool) -> tuple[Array, Weights]:
    """ResNet-18 for 32x32, channels last inside."""
    after = dict(buffers)

    def conv(name: str, x: Array, stride: int = 1) -> Array:
        kernel = w[f"{name}.weight"]
        pad = kernel.shape[0] // 2
        return lax.conv_general_dilated(
            x,
            kernel,
            (stride, stride),
            ((pad, pad), (pad, pad)),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    def norm(name: str, x: Array) -> Array:
        mean, variance = buffers[f"{name}.running_mean"], buffers[f"{name}.running_var"]
        if training:
            count = x.size // x.shape[-1]
            old_mean, old_variance = mean, variance
            mean = x.mean((0, 1, 2))
            variance = jnp.square(x - mean).mean((0, 1, 2))
            unbiased = variance * (count / (count - 1))
            after[f"{name}.running_mean"] = 0.9 * old_mean + 0.1 * mean
            after[f"{name}.running_var"] = 0.9 * old_variance + 0.1 * unbiased
        scale = lax.rsqrt(variance + 1e-5) * w[f"{name}.weight"]
        return (x - mean) * scale + w[f"{name}.bias"]

    def block(name: str, x: Array, stride: int) -> Array:
        y = jax.nn.relu(norm(f"{name}.norm1", conv(f"{name}.conv1", x, stride)))
        y = norm(f"{name}.norm2", conv(f"{name}.conv2", y))
        if f"{name}.shortcut.0.weight" in w:
            x = norm(f"{name}.shortcut.1", conv(f"{name}.shortcut.0", x, stride))
        return jax.nn.relu(y + x)

    x = jax.nn.relu(norm("norm", conv("stem", x_bchw.transpose(0, 2, 3, 1))))
    for i in range(8):
        x = block(f"blocks.{i}", x, 2 if i in (2, 4, 6) else 1)
    return _linear(w, "head", x.mean((1, 2))), after


def forward_of(case: dict[str, Any]) -> Forward:
    """The port of a case's model."""
    match case["factory"]:
        case "mlp":
            return mlp
        case "gpt":
            return gpt(case["sizes"].get("heads", 4))
        case "lstm":
            return lstm
        case "convnet":
            return resnet18
        case other:
            raise ValueError(f"no JAX port of {other!r}")


# Steps ----------------------------------------------------------------------------------------


def cross_entropy(scores: Array, targets: Array) -> Array:
    """Mean over all rows."""
    logs = jax.nn.log_softmax(scores, axis=-1)
    return -jnp.take_along_axis(logs, targets[..., None], axis=-1).mean()


def update(
    optimizer: dict[str, Any], w: Weights, grads: Weights, state: dict[str, Any]
) -> tuple[Weights, dict[str, Any]]:
    """One step of torch's SGD with momentum or AdamW."""
    rate = optimizer["rate"]
    if optimizer["kind"] == "sgd":
        moved = {k: optimizer["momentum"] * state["first"][k] + grads[k] for k in w}
        return {k: w[k] - rate * moved[k] for k in w}, {"first": moved}
    count = state["count"] + 1
    first = {k: 0.9 * state["first"][k] + 0.1 * grads[k] for k in w}
    second = {k: 0.999 * state["second"][k] + 0.001 * jnp.square(grads[k]) for k in w}
    correct_first = 1 - 0.9**count
    correct_second = jnp.sqrt(1 - 0.999**count)
    shrink = 1 - rate * optimizer["decay"]

    def moved_weight(k: str) -> Array:
        return w[k] * shrink - rate / correct_first * first[k] / (
            jnp.sqrt(second[k]) / correct_second + 1e-8
        )

    return {k: moved_weight(k) for k in w}, {"first": first, "second": second, "count": count}


def initial_state(optimizer: dict[str, Any], w: Weights) -> dict[str, Any]:
    """Zero moments; a count for AdamW."""
    first = {k: jnp.zeros_like(v) for k, v in w.items()}
    if optimizer["kind"] == "sgd":
        return {"first": first}
    return {
        "first": first,
        "second": {k: jnp.zeros_like(v) for k, v in w.items()},
        "count": jnp.zeros((), jnp.float32),
    }


def read(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """The case, its arrays in the layouts of this port, inputs and targets."""
    case = json.loads((folder / "case.json").read_text())
    with np.load(folder / "setup.npz") as arrays:
        state = {k.removeprefix("state."): arrays[k] for k in arrays if k.startswith("state.")}
        inputs, targets = arrays["inputs"], arrays["targets"]
    if case["factory"] == "gpt":
        del state["head.weight"]  # tied to tokens.weight
    laid_out = {}
    for name, value in state.items():
        if name.endswith("num_batches_tracked"):
            continue
        embedding = name in ("tokens.weight", "positions.weight")
        if value.ndim == 2 and not embedding:
            value = value.T
        elif value.ndim == 4:
            value = value.transpose(2, 3, 1, 0)
        laid_out[name] = np.ascontiguousarray(value)
    inputs = inputs.astype(np.int32) if inputs.dtype == np.int64 else inputs
    return case, laid_out, inputs, targets.astype(np.int32)


def prepare_case(mode: str, folder: Path) -> Prepare:
    """Load the case; beginning jits it and takes a first step."""

    def prepare() -> Callable[[], Running]:
        case, arrays, inputs, targets = read(folder)
        running = {k: v for k, v in arrays.items() if "running_" in k}
        weights = {k: v for k, v in arrays.items() if k not in running}
        x, y = jax.block_until_ready((jnp.array(inputs), jnp.array(targets)))
        if mode == "infer":
            return lambda: _begin_infer(forward_of(case), _put(weights), _put(running), x)
        return lambda: _begin_train(case, lambda: (_put(weights), _put(running)), x, y)

    return prepare


def _put(arrays: dict[str, np.ndarray]) -> Weights:
    """Fresh device arrays: donation gives up the ones before."""
    return {name: jnp.array(value) for name, value in arrays.items()}


def _begin_train(
    case: dict[str, Any], fresh: Callable[[], tuple[Weights, Weights]], x: Array, y: Array
) -> Running:
    forward = forward_of(case)

    def whole(w: Weights, buffers: Weights, state: Any, x: Array, y: Array) -> Any:
        def loss(w: Weights) -> tuple[Array, Weights]:
            output, after = forward(w, buffers, x, True)
            return cross_entropy(output, y), after

        (value, after), grads = jax.value_and_grad(loss, has_aux=True)(w)
        w, state = update(case["optimizer"], w, grads, state)
        return value, w, after, state

    jitted = jax.jit(whole, donate_argnums=(0, 1, 2))
    weights, buffers = fresh()
    held = [weights, buffers, initial_state(case["optimizer"], weights)]

    def step() -> Array:
        value, *held[:] = jitted(*held, x, y)
        return value

    def restart() -> None:
        held[0], held[1] = fresh()
        jax.block_until_ready(held)

    def observe() -> list[float]:
        return [first, *(float(step()) for _ in range(CHECKED_STEPS - 1))]

    def wait(value: Array) -> None:
        jax.block_until_ready((value, held))

    first = float(step())
    return Running(step, wait, restart, observe, {"jax": jax.__version__})


def _begin_infer(forward: Forward, w: Weights, buffers: Weights, x: Array) -> Running:
    jitted = jax.jit(lambda w, buffers, x: forward(w, buffers, x, False)[0])

    def step() -> Array:
        return jitted(w, buffers, x)

    first = jax.block_until_ready(step())

    def observe() -> list[float]:
        return sample(np.asarray(first).reshape(-1))

    notes = {"jax": jax.__version__}
    return Running(step, jax.block_until_ready, lambda: None, observe, notes)


def main() -> None:
    """Serve JAX; XLA takes its thread count from the cores that the process may use."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("train", "infer"))
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    jax.block_until_ready(jnp.zeros(1) + 1)  # starts the backend: part of importing
    serve(prepare_case(asked.mode, asked.folder))


if __name__ == "__main__":
    main()
