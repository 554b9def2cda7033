"""A sample call, at least one, for every ATen overload that the table reads as operators."""

from typing import Any

import torch

_GENERATOR = torch.Generator().manual_seed(7)


def _f(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=_GENERATOR, dtype=torch.float64)


def _p(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=_GENERATOR, dtype=torch.float64) * 0.8 + 0.1


def _i(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape, generator=_GENERATOR)


def _b(*shape: int) -> torch.Tensor:
    return torch.randint(2, shape, generator=_GENERATOR) > 0


X, Y, ROW = _f(2, 3), _f(2, 3), _f(3)
CUBE, IMAGE = _f(2, 3, 4), _f(2, 4, 6, 6)
MASK = torch.tensor([[True, False, True], [False, True, True]])
TIES = torch.tensor([[1.0, 3.0, 3.0], [0.0, 0.0, -1.0]], dtype=torch.float64)
HALF = torch.tensor([[1.5, -2.25, 3.0], [0.125, 4.0, -0.5]], dtype=torch.bfloat16)
ZERO_D = torch.tensor(1.5, dtype=torch.float32)
ABSENT = torch.tensor([[1.0, -torch.inf, 2.0], [-torch.inf] * 3], dtype=torch.float64)
FLAT = torch.float64

# Overload -> sample calls: positional arguments, then keyword arguments.
Sample = tuple[tuple[Any, ...], dict[str, Any]]


def _cells(gates: int, directions: int) -> list[torch.Tensor]:
    """Weights and biases of recurrent cells that take 4 values and keep 3."""
    one = [_f(gates * 3, 4), _f(gates * 3, 3), _f(gates * 3), _f(gates * 3)]
    return [tensor.clone() for _ in range(directions) for tensor in one]


def _call(*args: Any, **kwargs: Any) -> Sample:
    return args, kwargs


_UNARY_ANY = (
    *("neg", "abs", "sign", "exp", "exp2", "expm1", "sin", "cos", "tan", "atan", "sinh", "cosh"),
    *("tanh", "sigmoid", "erf", "erfc", "floor", "ceil", "trunc", "round", "isnan", "isinf"),
    *("relu", "hardsigmoid", "hardswish", "silu", "mish", "asinh", "sinc", "deg2rad", "rad2deg"),
    *("frac", "signbit"),
)
_UNARY_POSITIVE = (
    *("reciprocal", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "asin", "acos"),
    "atanh",
)
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")

SAMPLES: dict[str, tuple[Sample, ...]] = {
    **{f"aten.{name}.default": (_call(X), _call(HALF)) for name in _UNARY_ANY},
    **{f"aten.{name}.default": (_call(_p(2, 3)),) for name in _UNARY_POSITIVE},
    "aten.logical_not.default": (_call(MASK), _call(X)),
    "aten.bitwise_not.default": (_call(MASK), _call(_i(9, 4))),
    **{f"aten.{name}.Tensor": (_call(TIES, X), _call(X, ROW)) for name in _COMPARE},
    **{f"aten.{name}.Scalar": (_call(TIES, 0), _call(_i(5, 4), 2.5)) for name in _COMPARE},
    **{
        f"aten.logical_{name}.default": (_call(MASK, MASK.flip(0)), _call(X, MASK))
        for name in ("and", "or", "xor")
    },
    **{
        f"aten.bitwise_{name}.Tensor": (_call(MASK, MASK.flip(0)), _call(_i(9, 4), _i(9, 4)))
        for name in ("and", "or", "xor")
    },
    **{f"aten.bitwise_{name}.Scalar": (_call(_i(9, 4), 5),) for name in ("and", "or", "xor")},
    "aten.mul.Tensor": (_call(X, ROW), _call(X, 2.5), _call(HALF, ZERO_D), _call(_i(5, 3), ROW)),
    "aten.mul.Scalar": (_call(X, 3),),
    "aten.div.Tensor": (_call(X, _p(3)), _call(_i(9, 4), 2), _call(HALF, 3.0)),
    "aten.div.Scalar": (_call(X, 4),),
    "aten.div.Tensor_mode": (
        _call(X, _p(3), rounding_mode="floor"),
        _call(X, 0.3, rounding_mode="trunc"),
        _call(_i(9, 4), 2, rounding_mode="floor"),
        _call(X, 2.0, rounding_mode=None),
    ),
    "aten.floor_divide.default": (_call(X, _p(3)), _call(_i(20, 4) - 10, 3)),
    "aten.floor_divide.Scalar": (_call(_i(20, 4) - 10, 3),),
    "aten.remainder.Tensor": (_call(X, _p(3)),),
    "aten.remainder.Scalar": (_call(_i(20, 4) - 10, 3), _call(X, 0.7)),
    "aten.fmod.Tensor": (_call(X, _p(3)),),
    "aten.fmod.Scalar": (_call(X, 0.7),),
    "aten.maximum.default": (_call(TIES, TIES.flip(1)), _call(X, ROW)),
    "aten.minimum.default": (_call(TIES, TIES.flip(1)), _call(X, ROW)),
    "aten.atan2.default": (_call(X, Y),),
    "aten.add.Tensor": (_call(X, ROW, alpha=2), _call(X, 1), _call(HALF, ZERO_D), _call(MASK, 1)),
    "aten.add.Scalar": (_call(X, 2.5, 2),),
    "aten.sub.Tensor": (_call(X, ROW, alpha=0.5), _call(_i(9, 3), 1)),
    "aten.sub.Scalar": (_call(X, 2.5),),
    "aten.rsub.Scalar": (_call(X, 2.5),),
    "aten.div.Scalar_mode": (_call(X, 0.3, rounding_mode="floor"),),
    "aten.acosh.default": (_call(_p(3) + 1),),
    "aten.hypot.default": (_call(X, ROW),),
    "aten.copysign.Tensor": (_call(X, Y), _call(X, HALF)),
    "aten.copysign.Scalar": (_call(X, -1.0),),
    "aten.logaddexp.default": (_call(X, ROW), _call(ABSENT, ABSENT)),
    "aten.logaddexp2.default": (_call(X, ROW),),
    "aten.fmax.default": (_call(TIES, TIES.flip(1)), _call(X, HALF)),
    "aten.fmin.default": (_call(TIES, TIES.flip(1)),),
    "aten.xlogy.Tensor": (_call(X, _p(3)), _call(_i(3, 4), _p(4))),
    "aten.xlogy.Scalar_Self": (_call(2.0, _p(3)), _call(0, _p(3))),
    "aten.xlogy.Scalar_Other": (_call(X, 0.25),),
    "aten.special_xlog1py.default": (_call(X, _p(3)),),
    "aten.sgn.default": (_call(TIES),),
    "aten.round.decimals": (_call(X, decimals=2), _call(X * 100, decimals=-1)),
    "aten.heaviside.default": (_call(TIES, _f(3)),),
    "aten.logit.default": (_call(_p(2, 3)), _call(_p(2, 3), 0.2)),
    "aten.nan_to_num.default": (
        _call(ABSENT), _call(ABSENT, 1.0, None, -2.0), _call(_i(5, 4)), _call(HALF / 0.0),
    ),
    "aten.pow.Tensor_Scalar": (_call(X, 2), _call(_p(3), -0.5), _call(_i(5, 3), 2), _call(HALF, 3)),
    "aten.pow.Tensor_Tensor": (_call(_p(2, 3), X),),
    "aten.pow.Scalar": (_call(2.0, X), _call(2, X)),
    "aten.clamp.default": (_call(TIES, 0, 3), _call(X, None, 0.5), _call(HALF, -1.0)),
    "aten.clamp_min.default": (_call(TIES, 0),),
    "aten.clamp_max.default": (_call(TIES, 3),),
    "aten.clamp.Tensor": (
        _call(X, ROW - 1, ROW + 1), _call(X, None, ROW), _call(X, ROW), _call(X, HALF, ROW + 9),
    ),
    "aten.clamp_min.Tensor": (_call(X, ROW), _call(X, HALF)),
    "aten.clamp_max.Tensor": (_call(X, ROW),),
    "aten.lerp.Scalar": (_call(X, Y, 0.25),),
    "aten.lerp.Tensor": (_call(X, Y, _p(2, 3)),),
    "aten.addcmul.default": (_call(X, Y, ROW, value=0.5),),
    "prims.fma.default": (_call(X, Y, _f(2, 3)),),
    "aten.addcdiv.default": (_call(X, Y, _p(3), value=0.5),),
    "aten.where.self": (_call(MASK, X, ROW), _call(MASK, HALF, ZERO_D)),
    "aten.masked_fill.Scalar": (_call(X, MASK, -1.5), _call(ROW, MASK, 2)),
    "aten.masked_fill.Tensor": (_call(X, MASK, torch.tensor(2.0)),),
    "aten.leaky_relu.default": (_call(X, 0.1),),
    "aten.hardtanh.default": (_call(TIES, 0.0, 3.0),),
    "aten.gelu.default": (_call(X), _call(X, approximate="tanh"), _call(HALF)),
    "aten.softplus.default": (_call(torch.tensor([-3.0, 0, 5, 100]), 2, 15),),
    "aten.threshold.default": (_call(X, 0.1, 20.0),),
    "aten.elu.default": (
        _call(X, 1.5),
        _call(X, 1.6732632423543772, 1.0507009873554805),
        _call(X, 2.0, 1, 0.5),
    ),
    "aten.celu.default": (_call(X, 0.5),),
    "aten.softshrink.default": (_call(X, 0.25),),
    "aten.hardshrink.default": (_call(X, 0.25),),
    "aten._prelu_kernel.default": (_call(X, ROW),),
    "aten.glu.default": (_call(CUBE), _call(CUBE, 0)),
    "aten.log_sigmoid_forward.default": (_call(X),),
    "aten.alias.default": (_call(X),),
    "aten.clone.default": (_call(X, memory_format=torch.contiguous_format),),
    "aten.contiguous.default": (_call(X.t()),),
    "aten.lift_fresh_copy.default": (_call(X),),
    "aten.lift_fresh.default": (_call(X),),
    "aten._to_copy.default": (
        _call(X, dtype=torch.bfloat16), _call(X), _call(TIES, dtype=torch.int64),
    ),
    "aten.copy.default": (_call(torch.zeros(2, 3), ROW),),
    "aten.detach.default": (_call(X),),
    "tilewright.stop_gradient.default": (_call(X),),
    "tilewright.dropout.default": (_call(X, 0.5), _call(X, 1.0)),
    "aten.rrelu_with_noise_functional.default": (
        _call(X, torch.zeros_like(X), 0.1, 0.3, True),
    ),
    "aten.sum.default": (_call(X), _call(MASK), _call(HALF, dtype=torch.float32)),
    "aten.sum.dim_IntList": (_call(CUBE, [0, -1]), _call(CUBE, [], True), _call(CUBE, None)),
    "aten.mean.default": (_call(X), _call(HALF)),
    "aten.mean.dim": (_call(CUBE, [1], True), _call(HALF, [0], dtype=torch.float32)),
    "aten.prod.default": (_call(X),),
    "aten.prod.dim_int": (_call(X, 1, True),),
    "aten.amax.default": (_call(TIES, [1]), _call(TIES, [], True)),
    "aten.amin.default": (_call(TIES, [0, 1]),),
    "aten.max.default": (_call(TIES),),
    "aten.min.default": (_call(TIES),),
    "aten.any.default": (_call(MASK),),
    "aten.any.dim": (_call(MASK, 1, True),),
    "aten.any.dims": (_call(MASK, [0]), _call(MASK, None)),
    "aten.all.default": (_call(MASK),),
    "aten.all.dim": (_call(MASK, 1),),
    "aten.all.dims": (_call(MASK, [0, 1], True),),
    "aten.var.correction": (_call(CUBE, [1], correction=0), _call(CUBE, None, keepdim=True)),
    "aten.std.correction": (_call(CUBE, [0, 2], correction=1),),
    "aten.logsumexp.default": (_call(CUBE, [1], True), _call(X, [0, 1])),
    "aten.argmax.default": (_call(TIES, 1, True), _call(TIES)),
    "aten.argmin.default": (_call(TIES, -1),),
    "aten.max.dim": (_call(TIES, 1), _call(CUBE, 0, True)),
    "aten.min.dim": (_call(TIES, 1),),
    "aten.linalg_vector_norm.default": (_call(X), _call(CUBE, 1, [1], True), _call(X, torch.inf)),
    "aten.cumsum.default": (_call(CUBE, 1), _call(MASK, -1), _call(X, 0, dtype=torch.float32)),
    "aten.norm.Scalar": (_call(X), _call(X, 3)),
    "aten.norm.ScalarOpt_dim": (_call(CUBE, 2, [1]), _call(CUBE, None, [0, 2], True)),
    "aten.norm.ScalarOpt_dtype": (_call(HALF, 2, dtype=torch.float32),),
    "aten.norm.ScalarOpt_dim_dtype": (_call(HALF, 1, [0], False, dtype=torch.float32),),
    "aten.dist.default": (_call(X, ROW), _call(X, Y, 1)),
    "aten.var.dim": (_call(X, [1], False),),
    "aten.var_mean.correction": (_call(CUBE, [1], correction=0), _call(X)),
    "aten.std_mean.correction": (_call(CUBE, [0, 2], keepdim=True),),
    "aten.aminmax.default": (_call(TIES, dim=1), _call(TIES)),
    "aten.nansum.default": (_call(X / X.sign().clamp(min=0) * 0 + X), _call(CUBE, [1], True)),
    "aten.count_nonzero.default": (_call(TIES),),
    "aten.count_nonzero.dim_IntList": (_call(TIES, [1]),),
    "aten.trace.default": (_call(X), _call(_i(9, 3, 3))),
    "aten.cumprod.default": (_call(CUBE, 1), _call(TIES, 1), _call(MASK, 0)),
    "aten.logcumsumexp.default": (_call(CUBE, 1),),
    "aten.cummax.default": (_call(TIES, 1), _call(CUBE, 0)),
    "aten.cummin.default": (_call(TIES, 1),),
    "aten.sort.default": (_call(CUBE, 1), _call(_i(9, 7), 0, True), _call(_f())),
    "aten.sort.stable": (_call(TIES, stable=True, dim=1),),
    "aten.topk.default": (_call(CUBE, 2), _call(CUBE, 2, 1, False, True)),
    "aten.kthvalue.default": (_call(CUBE, 2), _call(CUBE, 2, 1, True)),
    "aten.median.dim": (_call(CUBE, 1),),
    "aten.nanmedian.dim": (_call(CUBE, 1, True),),
    "aten.mode.default": (_call(TIES, 1),),
    "aten.vdot.default": (_call(ROW, ROW * 2),),
    "aten.addmv.default": (_call(_f(2), X, ROW), _call(_f(2), X, ROW, beta=0, alpha=2)),
    "aten.addr.default": (_call(X, _f(2), ROW, beta=0.5),),
    "aten.addbmm.default": (_call(_f(3, 3), CUBE, CUBE.mT, alpha=0.5),),
    "aten.linalg_cross.default": (_call(X, ROW[None]), _call(_f(3, 2), _f(3, 2), dim=0)),
    "aten.view.default": (_call(CUBE, [6, -1]), _call(CUBE, [2, 3, 4])),
    "aten._unsafe_view.default": (_call(CUBE, [24]),),
    "aten.reshape.default": (_call(CUBE, [4, 6]),),
    "aten.expand.default": (_call(ROW, [2, 3]), _call(_f(2, 1), [4, -1, 5]), _call(X, [2, 3])),
    "aten.permute.default": (_call(CUBE, [2, 0, 1]), _call(CUBE, [0, -1, 1])),
    "aten.transpose.int": (_call(CUBE, 0, -1), _call(_f(), 0, 0)),
    "aten.t.default": (_call(X), _call(ROW)),
    "aten.slice.Tensor": (_call(CUBE, 1, 1, 9223372036854775807), _call(CUBE, -1, -3, 4, 2)),
    "aten.select.int": (_call(CUBE, 1, -1),),
    "aten.squeeze.default": (_call(_f(1, 2, 1)),),
    "aten.squeeze.dim": (_call(_f(1, 2, 1), 0), _call(X, 0)),
    "aten.squeeze.dims": (_call(_f(1, 2, 1), [0, 1]),),
    "aten.unsqueeze.default": (_call(X, -1), _call(X, 0)),
    "aten.split.Tensor": (_call(_f(5, 2), 2), _call(X, 1, -1)),
    "aten.split_with_sizes.default": (_call(_f(5, 2), [1, 3, 1]),),
    "aten.unsafe_split.Tensor": (_call(_f(4, 2), 2),),
    "aten.unbind.int": (_call(X, 1),),
    "aten.flip.default": (_call(CUBE, [0, 2]),),
    "aten.repeat.default": (_call(X, [2, 1, 2]),),
    "aten.roll.default": (_call(CUBE, [1, -1], [0, 2]), _call(CUBE, [5])),
    "aten.diagonal.default": (_call(CUBE, 1, 0, 2),),
    "aten.unfold.default": (_call(_f(2, 7), 1, 3, 2),),
    "aten.tril.default": (_call(CUBE, -1),),
    "aten.triu.default": (_call(CUBE),),
    "aten.cat.default": (_call([X, Y, ROW[None]]), _call([X, HALF], 1)),
    "aten.stack.default": (_call([X, Y], -1),),
    "aten.constant_pad_nd.default": (_call(X, [1, 2, 0, 1], 3.0), _call(X, [-1, 1])),
    "aten.diag_embed.default": (_call(X, 1, 0, 2),),
    "aten.as_strided.default": (_call(CUBE, (2, 3), (5, 1), 2), _call(_f(8), (3, 4), (1, 1))),
    "aten.block_diag.default": (_call([X, ROW, _f(), _f(2, 2)]),),
    "aten.rot90.default": tuple(_call(CUBE, k, [0, 2]) for k in range(4)),
    "aten.alias_copy.default": (_call(X),),
    "aten.view_copy.default": (_call(CUBE, [6, 4]),),
    "aten.expand_copy.default": (_call(ROW, [2, 3]),),
    "aten.permute_copy.default": (_call(CUBE, [2, 0, 1]),),
    "aten.eye.default": (_call(3, dtype=FLAT),),
    "aten.eye.m": (_call(3, 4, dtype=torch.int64),),
    "aten.linspace.default": (_call(0, 1, 5), _call(-1.5, 2, 4, dtype=FLAT)),
    "aten.full.default": (_call([2, 3], 1.5, dtype=FLAT), _call([], 3, dtype=torch.int64)),
    "aten.full_like.default": (_call(X, 2),),
    "aten.new_full.default": (_call(X, [4], 2.5, dtype=torch.float32),),
    "aten.zeros.default": (_call([2, 3], dtype=FLAT),),
    "aten.zeros_like.default": (_call(X), _call(X, dtype=torch.bool)),
    "aten.new_zeros.default": (_call(X, [2]),),
    "aten.ones.default": (_call([2], dtype=torch.int64),),
    "aten.ones_like.default": (_call(MASK),),
    "aten.new_ones.default": (_call(X, []),),
    "aten.scalar_tensor.default": (_call(2.5, dtype=FLAT),),
    "aten.fill.Scalar": (_call(X, 2),),
    "aten.fill.Tensor": (_call(X, torch.tensor(2.0)),),
    "aten.empty.memory_format": (_call([2, 3], dtype=FLAT),),
    "aten.empty_like.default": (_call(X),),
    "aten.new_empty.default": (_call(X, [2]),),
    "aten.arange.default": (_call(5), _call(2.5)),
    "aten.arange.start": (_call(2, 7, dtype=torch.int32),),
    "aten.arange.start_step": (_call(1, 8, 3), _call(0.5, 2.0, 0.25)),
    "aten.matmul.default": (_call(CUBE, _f(4, 5)), _call(ROW, ROW), _call(_f(5, 1, 3, 4), CUBE.mT)),
    "aten.mm.default": (_call(X, Y.t()),),
    "aten.bmm.default": (_call(CUBE, CUBE.mT),),
    "aten.mv.default": (_call(X, ROW),),
    "aten.dot.default": (_call(ROW, ROW),),
    "aten.linear.default": (_call(CUBE, _f(5, 4), _f(5)), _call(ROW, X)),
    "aten.addmm.default": (_call(_f(2), X, _f(3, 2), beta=0.5, alpha=2),),
    "aten.baddbmm.default": (_call(_f(3, 3), CUBE, CUBE.mT, beta=2),),
    "aten.softmax.int": (_call(CUBE, 1), _call(HALF, -1, torch.float32)),
    "aten._safe_softmax.default": (_call(CUBE, 1), _call(ABSENT, -1)),
    "aten._softmax.default": (_call(X, 0, False),),
    "aten.log_softmax.int": (_call(CUBE, -1), _call(HALF, -1, torch.float32)),
    "aten._log_softmax.default": (_call(X, 1, False),),
    "aten.layer_norm.default": (
        _call(CUBE, [4], _f(4), _f(4), 1e-3),
        _call(CUBE, [3, 4]),
        _call(CUBE, [4], _f(4)),
    ),
    "aten.native_layer_norm.default": (_call(CUBE, [4], _f(4), _f(4), 1e-5),),
    "aten.rms_norm.default": (_call(CUBE, [4], _f(4), 1e-3), _call(CUBE, [3, 4])),
    "aten.group_norm.default": (_call(IMAGE, 2, _f(4), _f(4)), _call(IMAGE, 4)),
    "aten._weight_norm_interface.default": (_call(CUBE, _f(2, 1, 1)), _call(X, _f(1, 3), 1)),
    "aten.native_group_norm.default": (_call(IMAGE, _f(4), _f(4), 2, 4, 36, 2, 1e-5),),
    "aten._native_batch_norm_legit_functional.default": (
        _call(IMAGE, _f(4), _f(4), _f(4), _p(4), True, 0.1, 1e-5),
        _call(CUBE, None, None, _f(3), _p(3), True, 0.3, 1e-3),
    ),
    "aten._native_batch_norm_legit.no_stats": (_call(IMAGE, _f(4), _f(4), True, 0.1, 1e-5),),
    "aten._native_batch_norm_legit_no_training.default": (
        _call(IMAGE, _f(4), _f(4), _f(4), _p(4), 0.1, 1e-5),
    ),
    "aten.cross_entropy_loss.default": (
        _call(_f(4, 5), _i(5, 4)),
        _call(_f(2, 5, 3), _i(5, 2, 3), None, 2, 1),
        _call(_f(4, 5), torch.tensor([1, -100, 2, 0]), _p(5), 1, -100, 0.1),
        _call(_f(5), torch.tensor(3), None, 0),
        _call(_f(4, 5), _p(4, 5)),
        _call(_f(4, 5), _p(4, 5), _p(5), 2, -100, 0.1),
    ),
    "aten.nll_loss_forward.default": (_call(_f(4, 5), _i(5, 4), _p(5), 1, -100),),
    "aten.nll_loss2d_forward.default": (_call(_f(2, 3, 2, 2), _i(3, 2, 2, 2), None, 1, -100),),
    "aten.soft_margin_loss.default": (_call(X, Y),),
    "aten.multi_margin_loss.default": (
        _call(_f(4, 5), _i(5, 4)), _call(_f(4, 5), _i(5, 4), 2, 0.5, _p(5), 0),
    ),
    "aten.mse_loss.default": (_call(X, Y), _call(X, Y, 0), _call(X, Y, 2)),
    "aten.smooth_l1_loss.default": (_call(X, Y, 1, 0.5),),
    "aten.huber_loss.default": (_call(X, Y, 0, 0.5),),
    "aten.binary_cross_entropy.default": (
        _call(_p(2, 3), _p(2, 3)), _call(_p(2, 3), _p(2, 3), _p(3), 2),
    ),
    "aten.binary_cross_entropy_with_logits.default": (
        _call(X, _p(2, 3)),
        _call(X, _p(2, 3), None, _p(3), 2),
        _call(X, _p(2, 3), _p(2, 3), None, 0),
        _call(X, _p(2, 3), _p(3), _p(3), 1),
    ),
    "aten.embedding.default": (_call(_f(5, 4), _i(5, 2, 3)), _call(_f(5, 4), _i(5, 6), 0)),
    "aten.embedding_bag.padding_idx": (
        _call(_f(5, 4), _i(5, 8), torch.tensor([0, 2, 5]), False, 0, False, _p(8), False, None),
        _call(_f(5, 4), _i(5, 8), torch.tensor([0, 2, 2, 8]), False, 1, False, None, True, -4),
    ),
    "aten.gather.default": (_call(CUBE, 1, _i(3, 2, 5, 4)),),
    "aten.index_select.default": (_call(CUBE, 1, _i(3, 5)),),
    "aten.index.Tensor": (
        _call(CUBE, [_i(2, 5)]),
        _call(CUBE, [None, _i(3, 2, 1), _i(4, 3)]),
        _call(CUBE, [_i(2, 3), None, -1 - _i(4, 3)]),
    ),
    "aten._unsafe_index.Tensor": (_call(CUBE, [None, _i(3, 5)]),),
    "aten.index_put.default": (
        _call(CUBE, [torch.tensor([1, 0])], _f(2, 3, 4)),
        _call(CUBE, [torch.tensor([1, 1]), torch.tensor([0, 0])], _f(2, 4), True),
        _call(X, [MASK], torch.tensor(2.0, dtype=FLAT)),
        _call(CUBE, [MASK], torch.tensor([2.0], dtype=FLAT)),
    ),
    "aten.one_hot.default": (_call(_i(4, 2, 3), 4), _call(torch.tensor(2), 3)),
    "aten.scatter.value": (_call(X, 1, torch.tensor([[0], [2]]), 4.0),),
    "aten.scatter.src": (_call(X, 1, torch.tensor([[0, 2], [2, 1]]), _f(2, 2)),),
    "aten.scatter_add.default": (_call(X, 1, torch.tensor([[0, 0], [2, 1]]), _f(2, 2)),),
    "aten.scatter_reduce.two": (
        _call(X, 1, torch.tensor([[0, 0], [2, 1]]), _f(2, 2), "sum"),
        _call(X, 1, torch.tensor([[0, 0], [2, 1]]), _f(2, 2), "sum", include_self=False),
        _call(X, 1, torch.tensor([[0, 0], [2, 1]]), _f(2, 2), "mean"),
        _call(X, 1, torch.tensor([[0, 0], [2, 1]]), _f(2, 2), "mean", include_self=False),
        _call(X, 1, torch.tensor([[0, 0], [2, 1]]), _f(2, 2), "amax"),
        _call(_i(9, 2, 3), 1, torch.tensor([[0, 0], [2, 1]]), _i(9, 2, 2), "amin"),
    ),
    "aten.index_copy.default": (_call(X, 1, torch.tensor([2, 0]), _f(2, 2)),),
    "aten.index_fill.int_Scalar": (_call(X, 1, torch.tensor([2, 0]), 4.0),),
    "aten.index_fill.int_Tensor": (
        _call(X, 1, torch.tensor([2, 0]), _f()), _call(CUBE, -2, torch.tensor([2, 0, 2]), _f()),
    ),
    "aten.take.default": (_call(X, torch.tensor([[0, 5], [-1, 0]])),),
    "aten.diagonal_scatter.default": (_call(CUBE, _f(2, 3), 1, 1, 2),),
    "aten.searchsorted.Tensor": (
        _call(ROW.sort().values, X), _call(X.sort().values, Y, right=True, out_int32=True),
    ),
    "aten.bucketize.Tensor": (_call(X, ROW.sort().values),),
    "aten.isin.Tensor_Tensor": (
        _call(_i(9, 2, 3), torch.tensor([1, 4, 5])), _call(TIES, _f(1, 2), invert=True),
    ),
    "aten.tril_indices.default": (_call(3, 4, 1),),
    "aten.triu_indices.default": (_call(3, 4, -1, dtype=torch.int32),),
    "aten._cdist_forward.default": (_call(CUBE, _f(2, 5, 4), 2.0, 2), _call(X, Y, 1.0, None)),
    "aten._pdist_forward.default": (_call(_f(4, 3), 2.0),),
    "aten.index_add.default": (_call(X, 1, torch.tensor([0, 0, 2, 1]), _f(2, 4), alpha=2),),
    "aten.slice_scatter.default": (_call(_f(5, 2), _f(2, 2), 0, 1, 4, 2),),
    "aten.select_scatter.default": (_call(CUBE, _f(2, 4), 1, -1),),
    "aten.as_strided_scatter.default": (
        _call(_f(3, 4), _f(2, 3), (2, 3), (4, 1), 1),
        _call(_f(12), _f(3), (3,), (5,)),
    ),
    "aten.conv1d.default": (
        _call(_f(2, 4, 9), _f(6, 2, 3), _f(6), [2], [1], [1], 2),
        _call(_f(2, 3, 7), _f(4, 3, 2)),
    ),
    "aten.conv2d.default": (
        _call(IMAGE, _f(6, 2, 3, 3), _f(6), [2, 1], [1, 0], [1, 2], 2),
        _call(IMAGE, _f(3, 4, 1, 1)),
    ),
    "aten.max_pool2d.default": (
        _call(IMAGE, [2, 2]),
        _call(IMAGE, [3], [2], [1], [1], True),
    ),
    "aten.conv3d.default": (_call(_f(1, 2, 3, 4, 4), _f(3, 2, 2, 2, 3), _f(3)),),
    "aten.convolution.default": (
        _call(IMAGE, _f(6, 2, 3, 3), None, [2, 1], [1, 0], [1, 2], False, [0, 0], 2),
        _call(IMAGE, _f(4, 3, 3, 2), _f(3), [2], [1], [1], True, [1], 1),
        _call(CUBE, _f(3, 2, 2), _f(2), [2], [0], [1], True, [0], 1),
    ),
    "aten.im2col.default": (_call(IMAGE, [2, 3], [1, 1], [1, 0], [2, 1]),),
    "aten.col2im.default": (_call(_f(2, 8, 9), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]),),
    "aten.max_pool1d.default": (_call(CUBE, [2]), _call(CUBE, [3], [2], [1])),
    "aten.max_pool2d_with_indices.default": (_call(IMAGE, [2, 2]), _call(IMAGE, [3], [2], [1])),
    "aten.max_pool3d_with_indices.default": (_call(_f(1, 2, 4, 4, 3), [2]),),
    "aten.avg_pool1d.default": (_call(CUBE, [3], [1], [1], False, False),),
    "aten.avg_pool3d.default": (_call(_f(1, 2, 4, 4, 3), [2, 2, 1], [], [0]),),
    "aten.adaptive_avg_pool1d.default": (_call(CUBE, [3]),),
    "aten._adaptive_avg_pool3d.default": (_call(_f(1, 2, 4, 3, 5), [2, 3, 2]),),
    "aten.adaptive_max_pool2d.default": (_call(IMAGE, [2, 4]),),
    "aten.adaptive_max_pool3d.default": (_call(_f(1, 2, 4, 3, 5), [2, 3, 2]),),
    "aten.avg_pool2d.default": (_call(IMAGE, [3, 2], [2], [1, 1], False, False), _call(IMAGE, [2])),
    "aten._adaptive_avg_pool2d.default": (_call(IMAGE, [1, 1]), _call(IMAGE, [2, 3])),
    "aten.upsample_linear1d.default": (_call(CUBE, [7], False), _call(CUBE, [7], True)),
    "aten.upsample_bilinear2d.default": (
        _call(IMAGE, [12, 4], False), _call(IMAGE, [7, 8], True),
        _call(IMAGE, [9, 9], False, 1.5, 1.5),
    ),
    "aten.upsample_trilinear3d.default": (_call(_f(1, 2, 2, 3, 4), [4, 4, 4], False),),
    "aten.upsample_bicubic2d.default": (_call(IMAGE, [12, 4], False),),
    "aten.upsample_linear1d.vec": (_call(CUBE, None, False, [1.5]),),
    "aten.upsample_bilinear2d.vec": (
        _call(IMAGE, None, False, [1.3, 2.0]), _call(IMAGE, [9, 5], True, None),
    ),
    "aten.upsample_trilinear3d.vec": (_call(_f(1, 2, 2, 3, 4), [4, 4, 4], False, None),),
    "aten.upsample_bicubic2d.vec": (_call(IMAGE, None, False, [2.0, 0.5]),),
    "aten.affine_grid_generator.default": (
        _call(_f(2, 2, 3), [2, 1, 3, 4], False), _call(_f(1, 3, 4), [1, 2, 2, 3, 2], True),
    ),
    "aten.grid_sampler_2d.default": (
        _call(IMAGE, _f(2, 3, 3, 2), 0, 0, False), _call(IMAGE, _f(2, 3, 3, 2), 1, 2, True),
    ),
    "aten.max_unpool2d.default": (
        _call(_f(2, 2, 2), torch.tensor([[[3, 0], [5, 9]], [[1, 2], [4, 11]]]), [3, 4]),
    ),
    "aten.max_unpool3d.default": (
        _call(_f(1, 1, 2, 2), torch.tensor([[[[0, 3], [6, 7]]]]), [2, 2, 2], [2, 2, 2], [0, 0, 0]),
    ),
    "aten.reflection_pad1d.default": (_call(CUBE, [2, 1]),),
    "aten.reflection_pad2d.default": (_call(IMAGE, [2, 1, 0, 3]),),
    "aten.reflection_pad3d.default": (_call(_f(1, 2, 3, 3, 3), [2, 1, 0, 1, 1, 1]),),
    "aten.replication_pad1d.default": (_call(CUBE, [2, 1]),),
    "aten.replication_pad2d.default": (_call(IMAGE, [2, 1, 0, 3]),),
    "aten.replication_pad3d.default": (_call(_f(1, 2, 3, 3, 3), [2, 1, 0, 1, 1, 1]),),
    "aten.pixel_shuffle.default": (_call(IMAGE, 2),),
    "aten.pixel_unshuffle.default": (_call(IMAGE, 3),),
    "aten.channel_shuffle.default": (_call(IMAGE, 2),),
    "aten.scaled_dot_product_attention.default": (
        _call(_f(2, 2, 3, 4), _f(2, 2, 5, 4), _f(2, 2, 5, 6)),
        _call(_f(2, 2, 3, 4), _f(2, 2, 3, 4), _f(2, 2, 3, 4), None, 0.0, True, scale=0.3),
        _call(_f(2, 2, 3, 4), _f(2, 2, 5, 4), _f(2, 2, 5, 4), _f(3, 5)),
        _call(_f(2, 2, 2, 4), _f(2, 2, 3, 4), _f(2, 2, 3, 4), MASK),
        _call(_f(2, 4, 3, 4), _f(2, 2, 3, 4), _f(2, 2, 3, 4), enable_gqa=True),
    ),
    "aten.lstm.input": (
        _call(
            _f(3, 2, 4), [_f(2, 2, 3)] * 2, _cells(4, 2), True, 1, 0.0, True, True, False,
        ),
    ),
    **{
        f"aten.{name}.input": (
            _call(_f(3, 2, 4), _f(2, 2, 3), _cells(gates, 2), True, 1, 0.0, True, True, False),
            _call(_f(2, 3, 4), _f(1, 2, 3), _cells(gates, 1), True, 1, 0.0, False, False, True),
        )
        for name, gates in (("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1))
    },
}  # fmt: skip
