"""What one block of a language model computes, operator by operator, and the seconds by roofline.

The idea: a product takes the longer of its operations and its bytes, and a little for each start,
which is what makes small products inefficient; all else takes its bytes.  Bytes are counted pass
by pass over the tensors, as the kernels of the field's frameworks make them: fused norms, one
kernel for scale, mask and softmax, dropout and the addition after it together.  Unfused attention
writes its scores and probabilities; fused attention keeps them near (FlashAttention-2) and
computes them again in the backward.

This module does not know micro-batches in time, stages, or collectives.
"""

from dataclasses import dataclass

from tilewright.cost import Machine, ModelSpec

HALF = 2  # bytes of an activation
# FlashAttention-2 (arXiv 2307.08691), figure 4: 0.6 of an A100's peak with a causal mask and heads
# of 128, where large products reach 0.8; its backward makes 2.5 times the operations.
FUSED_SHARE, FUSED_BACKWARD = 0.75, 2.5
# Bytes for each logit and pass: half to float, maximum, subtraction, exponential, sum, division;
# and back: the gradient, its product with the loss's, and float to half.
LOSS_BYTES = 30


@dataclass(frozen=True, slots=True)
class Shape:
    """What one rank computes of one micro-batch.

    batch, seq: of the micro-batch, whole.  tensor, context, expert: ranks that share matrices,
    sequences, experts.  shared_norms: sequence parallelism.  fused: attention.  width: bytes of
    an activation.
    """

    batch: int
    seq: int
    tensor: int = 1
    context: int = 1
    expert: int = 1
    shared_norms: bool = False
    fused: bool = False
    width: int = HALF

    @property
    def tokens(self) -> int:
        """Tokens of the micro-batch on one rank of the context."""
        return self.batch * self.seq // self.context


@dataclass(frozen=True, slots=True)
class Load:
    """flops: of products.  bytes: moved.  products, passes: kernels of each kind."""

    flops: float = 0.0
    bytes: float = 0.0
    products: int = 0
    passes: int = 0

    def times(self, factor: float) -> "Load":
        """Return so much of it in as many kernels."""
        return Load(self.flops * factor, self.bytes * factor, self.products, self.passes)

    @property
    def operators(self) -> int:
        """Kernels that the host starts."""
        return self.products + self.passes


NOTHING = Load()


@dataclass(frozen=True, slots=True)
class Part:
    """One operator: its forward, and the gradients of its input and of its weights.

    scores: whether selective recomputation runs it again.
    """

    name: str
    forward: Load
    input_grad: Load
    weight_grad: Load = NOTHING
    scores: bool = False


@dataclass(frozen=True, slots=True)
class Rates:
    """What a device reaches.  flops: FLOP/s of large products.  bandwidth: B/s of its memory.
    start: seconds of each product; launch: of each other kernel.  host: seconds in which the host
    starts one operator."""

    flops: float
    bandwidth: float
    start: float
    launch: float
    host: float

    def seconds(self, load: Load) -> float:
        """Return the seconds of a load: the longer of its operations and its bytes."""
        computing = load.flops / self.flops + load.products * self.start
        return max(computing, load.bytes / self.bandwidth + load.passes * self.launch)


def rates(machine: Machine, precision: str) -> Rates:
    """Return what a machine's devices reach with an element type."""
    constants, device = machine.constants, machine.device
    return Rates(
        device.peak(precision) * constants.gemm_fraction,
        device.memory_bandwidth * constants.memory_fraction,
        constants.product_seconds,
        device.launch_seconds,
        constants.operator_seconds,
    )


def block_parts(spec: ModelSpec, shape: Shape) -> tuple[Part, ...]:
    """Return the operators of one block on one rank, first to last."""
    return (
        _norm("norm before attention", spec, shape),
        *_attention(spec, shape),
        _residual("residual after attention", spec, shape),
        _norm("norm before feed-forward", spec, shape),
        *_feed_forward(spec, shape),
        _residual("residual after feed-forward", spec, shape),
    )


def head_parts(spec: ModelSpec, shape: Shape) -> tuple[Part, ...]:
    """Return the last norm, the head and the loss."""
    columns = -(-spec.vocab // shape.tensor)
    loss = Load(bytes=LOSS_BYTES * shape.tokens * columns, passes=6)
    head = product("head", shape, shape.tokens, spec.hidden, columns)
    return _norm("last norm", spec, shape), head, Part("loss", loss, loss)


def embedding_parts(spec: ModelSpec, shape: Shape) -> tuple[Part, ...]:
    """Return the embedding: rows read and summed, and their gradients scattered."""
    size = shape.tokens * spec.hidden * shape.width
    return (Part("embedding", Load(bytes=4 * size, passes=4), Load(bytes=4 * size, passes=4)),)


def product(name: str, shape: Shape, m: int, k: int, n: int, count: int = 1) -> Part:
    """Return `count` products [m, k] [k, n]; each gradient is one more."""
    size = shape.width * (m * k + k * n + m * n) * count
    load = Load(2 * m * k * n * count, size, count)
    return Part(name, load, load, load)


def _attention(spec: ModelSpec, shape: Shape) -> tuple[Part, ...]:
    t, tokens = shape.tensor, shape.tokens
    width, kv = spec.heads * spec.head // t, spec.kv_heads * spec.head // min(t, spec.kv_heads)
    joined = width + 2 * kv
    moved = 2 * tokens * shape.width
    parts = [
        product("queries, keys, values", shape, tokens, spec.hidden, joined),
        # Heads apart are strides; their gradients are joined again.
        Part("heads apart", NOTHING, Load(bytes=moved * joined, passes=1)),
        *([] if spec.learned else [_pass("rotary positions", moved * (width + kv))]),
        *(_fused(spec, shape) if shape.fused else _unfused(spec, shape)),
        Part("heads together", Load(bytes=moved * width, passes=1), NOTHING),
        product("attention output", shape, tokens, width, spec.hidden),
    ]
    if spec.bias:
        sums = tokens * shape.width * (joined + spec.hidden)
        parts.append(Part("attention biases", NOTHING, NOTHING, Load(bytes=sums, passes=2)))
    return tuple(parts)


def _scores(spec: ModelSpec, shape: Shape) -> float:
    """Entries of the rows of scores that one rank computes."""
    return shape.tokens * shape.seq * spec.heads / shape.tensor


def _unfused(spec: ModelSpec, shape: Shape) -> tuple[Part, ...]:
    """Bytes of each score, with dropout: forward 13 (two bytes: written, read and written by the
    softmax, by the dropout with its mask of one byte, read), backward 19."""
    scores = _scores(spec, shape)
    w, masked = shape.width, spec.dropout
    forward, backward = (6 * w + 1, 9 * w + 1) if masked else (4 * w, 7 * w)
    flops = 4 * scores * spec.head
    kernels = 2 if masked else 1
    return (
        Part("scores and averages", Load(flops, 0, 2), Load(2 * flops, 0, 4), scores=True),
        Part(
            "softmax and dropout",
            Load(bytes=forward * scores, passes=kernels),
            Load(bytes=backward * scores, passes=kernels),
            scores=True,
        ),
    )


def _fused(spec: ModelSpec, shape: Shape) -> tuple[Part, ...]:
    """Half of the square, as the mask is causal."""
    flops = 2 * _scores(spec, shape) * spec.head / FUSED_SHARE
    size = 4 * shape.tokens * shape.width * spec.heads * spec.head / shape.tensor
    forward = Load(flops, size, 1)
    return (Part("fused attention", forward, forward.times(FUSED_BACKWARD), scores=True),)


def _feed_forward(spec: ModelSpec, shape: Shape) -> tuple[Part, ...]:
    """With experts, each of a rank's gets an equal share of the tokens that are sent to it."""
    inner = spec.ffn // shape.tensor
    local = max(1, spec.experts // shape.expert)
    rows = shape.tokens * (spec.top_k or 1)
    each = -(-rows // local)
    up = 2 if spec.gated else 1
    entry = inner * rows * shape.width
    parts = [
        product("feed-forward up", shape, each, spec.hidden, up * inner, local),
        Part(
            "activation",
            Load(bytes=(up + 1) * entry, passes=1),
            Load(bytes=(2 * up + 1) * entry, passes=1),
        ),
        product("feed-forward down", shape, each, inner, spec.hidden, local),
    ]
    if spec.experts:
        moved = 4 * rows * spec.hidden * shape.width
        parts.insert(0, product("router", shape, shape.tokens, spec.hidden, spec.experts))
        parts.insert(1, _pass("tokens to experts and back", moved))
    if spec.bias:
        sums = up * entry + rows * spec.hidden * shape.width
        parts.append(Part("feed-forward biases", NOTHING, NOTHING, Load(bytes=sums, passes=2)))
    return tuple(parts)


def _between(spec: ModelSpec, shape: Shape) -> float:
    """Bytes of the tensor between products that are shared, on one rank."""
    shared = shape.tensor if shape.shared_norms else 1
    return shape.tokens * spec.hidden * shape.width / shared


def _norm(name: str, spec: ModelSpec, shape: Shape) -> Part:
    size = _between(spec, shape)
    return Part(name, Load(bytes=2 * size, passes=1), Load(bytes=3 * size, passes=1))


def _residual(name: str, spec: ModelSpec, shape: Shape) -> Part:
    """Bias, dropout and addition in one pass: two read, one written, and a mask of a byte."""
    size = _between(spec, shape)
    load = Load(bytes=size * (3 + (1 / shape.width if spec.dropout else 0)), passes=1)
    return Part(name, load, load)


def _pass(name: str, size: float) -> Part:
    load = Load(bytes=size, passes=1)
    return Part(name, load, load)
