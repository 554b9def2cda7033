"""Which operator of ours each ATen overload is.

The idea: one literal table from an overload's name to the rule that reads it.  A rule that cannot
do what it is given makes nothing; what makes nothing, or is not listed, stays a library call.
This module does not know how a call is read (`call`) or rewritten (`*_rules`).
"""

from tilewright.capture import elementwise_rules as elementwise
from tilewright.capture import network_rules as network
from tilewright.capture import view_rules as views
from tilewright.capture.call import Rule
from tilewright.capture.chance import dropout

# Each with ATen's name, one operand, no attributes.
_UNARY = (
    *("neg", "abs", "sign", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p"),
    *("sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
    *("sigmoid", "erf", "erfc", "floor", "ceil", "trunc", "round", "logical_not", "bitwise_not"),
    *("isnan", "isinf", "relu", "hardsigmoid", "hardswish", "silu", "mish"),
)
# Each with ATen's name, two operands: tensors, or a tensor and a number.
_BINARY = (
    *("mul.Tensor", "mul.Scalar", "div.Tensor", "div.Scalar", "floor_divide.default"),
    *("floor_divide.Scalar", "remainder.Tensor", "remainder.Scalar", "fmod.Tensor", "fmod.Scalar"),
    *("maximum.default", "minimum.default", "atan2.default"),
    *(f"{name}.{kind}" for name in ("eq", "ne", "lt", "le", "gt", "ge")
      for kind in ("Tensor", "Scalar")),
    *("logical_and.default", "logical_or.default", "logical_xor.default"),
    *(f"bitwise_{name}.{kind}" for name in ("and", "or", "xor") for kind in ("Tensor", "Scalar")),
)  # fmt: skip

RULES: dict[str, Rule] = {
    **{f"aten.{name}.default": elementwise.unary(name) for name in _UNARY},
    **{f"aten.{name}": elementwise.binary(name.split(".")[0]) for name in _BINARY},
    # Arithmetic.
    "aten.add.Tensor": elementwise.binary("add", "alpha"),
    "aten.add.Scalar": elementwise.binary("add", "alpha"),
    "aten.sub.Tensor": elementwise.binary("sub", "alpha"),
    "aten.sub.Scalar": elementwise.binary("sub", "alpha"),
    "aten.rsub.Scalar": elementwise.reversed_sub,
    "aten.div.Tensor_mode": elementwise.divide,
    "aten.pow.Tensor_Scalar": elementwise.power("self", "exponent"),
    "aten.pow.Tensor_Tensor": elementwise.power("self", "exponent"),
    "aten.pow.Scalar": elementwise.power("self", "exponent"),
    "aten.clamp.default": elementwise.clamp,
    "aten.clamp_min.default": elementwise.clamp,
    "aten.clamp_max.default": elementwise.clamp,
    "aten.clamp.Tensor": elementwise.clamp_tensors,
    "aten.lerp.Scalar": elementwise.lerp,
    "aten.lerp.Tensor": elementwise.lerp,
    "aten.addcmul.default": elementwise.addc("addcmul"),
    "prims.fma.default": elementwise.fused_product,
    "aten.addcdiv.default": elementwise.addc("addcdiv"),
    "aten.where.self": elementwise.where,
    "aten.masked_fill.Scalar": elementwise.masked_fill,
    "aten.masked_fill.Tensor": elementwise.masked_fill,
    # Activations.
    "aten.leaky_relu.default": elementwise.unary("leaky_relu", "negative_slope"),
    "aten.hardtanh.default": elementwise.unary("hardtanh", "min_val", "max_val"),
    "aten.gelu.default": elementwise.unary("gelu", "approximate"),
    "aten.softplus.default": elementwise.unary("softplus", "beta", "threshold"),
    "aten.threshold.default": elementwise.unary("threshold", "threshold", "value"),
    "aten.elu.default": elementwise.elu,
    "aten.log_sigmoid_forward.default": elementwise.log_sigmoid,
    # Copies and conversions.
    "aten.alias.default": elementwise.same,
    "aten.clone.default": elementwise.same,
    "aten.contiguous.default": elementwise.same,
    "aten.lift_fresh_copy.default": elementwise.same,
    "aten.lift_fresh.default": elementwise.same,
    "aten._to_copy.default": elementwise.to_copy,
    "aten.copy.default": elementwise.copy,
    "aten.detach.default": elementwise.stop,
    "tilewright.stop_gradient.default": elementwise.stop,
    # Reductions.
    "aten.sum.default": elementwise.reduce("sum"),
    "aten.sum.dim_IntList": elementwise.reduce("sum"),
    "aten.mean.default": elementwise.reduce("mean"),
    "aten.mean.dim": elementwise.reduce("mean"),
    "aten.prod.default": elementwise.reduce("prod"),
    "aten.prod.dim_int": elementwise.reduce("prod"),
    "aten.amax.default": elementwise.reduce("amax"),
    "aten.amin.default": elementwise.reduce("amin"),
    "aten.max.default": elementwise.extreme("amax"),
    "aten.min.default": elementwise.extreme("amin"),
    "aten.any.default": elementwise.reduce("any"),
    "aten.any.dim": elementwise.reduce("any"),
    "aten.any.dims": elementwise.reduce("any"),
    "aten.all.default": elementwise.reduce("all"),
    "aten.all.dim": elementwise.reduce("all"),
    "aten.all.dims": elementwise.reduce("all"),
    "aten.var.correction": elementwise.reduce("var", "correction"),
    "aten.std.correction": elementwise.reduce("std", "correction"),
    "aten.logsumexp.default": elementwise.log_sum_exp,
    "aten.argmax.default": elementwise.argument("argmax"),
    "aten.argmin.default": elementwise.argument("argmin"),
    "aten.max.dim": elementwise.reduce_pair("max_dim"),
    "aten.min.dim": elementwise.reduce_pair("min_dim"),
    "aten.linalg_vector_norm.default": elementwise.vector_norm,
    "aten.cumsum.default": elementwise.cumsum,
    # Views.
    "aten.view.default": views.reshape,
    "aten._unsafe_view.default": views.reshape,
    "aten.reshape.default": views.reshape,
    "aten.expand.default": views.expand,
    "aten.permute.default": views.permute,
    "aten.transpose.int": views.transpose,
    "aten.t.default": views.t,
    "aten.slice.Tensor": views.slice_,
    "aten.select.int": views.select,
    "aten.squeeze.default": views.squeeze,
    "aten.squeeze.dim": views.squeeze,
    "aten.squeeze.dims": views.squeeze,
    "aten.unsqueeze.default": views.unsqueeze,
    "aten.split.Tensor": views.split,
    "aten.split_with_sizes.default": views.split,
    "aten.unsafe_split.Tensor": views.split,
    "aten.unbind.int": views.unbind,
    "aten.flip.default": views.along("flip", dims="dims"),
    "aten.repeat.default": views.along("repeat", repeats="repeats"),
    "aten.roll.default": views.roll,
    "aten.diagonal.default": views.along("diagonal", offset="offset", dim1="dim1", dim2="dim2"),
    "aten.unfold.default": views.along("unfold", dim="dimension", size="size", step="step"),
    "aten.tril.default": views.along("tril", diagonal="diagonal"),
    "aten.triu.default": views.along("triu", diagonal="diagonal"),
    "aten.cat.default": views.join("cat"),
    "aten.stack.default": views.join("stack"),
    "aten.constant_pad_nd.default": views.pad,
    # Constants.
    "aten.full.default": elementwise.filled(),
    "aten.full_like.default": elementwise.filled(),
    "aten.new_full.default": elementwise.filled(),
    "aten.zeros.default": elementwise.filled(0),
    "aten.zeros_like.default": elementwise.filled(0),
    "aten.new_zeros.default": elementwise.filled(0),
    "aten.ones.default": elementwise.filled(1),
    "aten.ones_like.default": elementwise.filled(1),
    "aten.new_ones.default": elementwise.filled(1),
    "aten.scalar_tensor.default": elementwise.filled(name="s"),
    "aten.fill.Scalar": elementwise.filled(name="value"),
    "aten.fill.Tensor": elementwise.fill,
    # Memory not filled yet may hold anything, so zeros will do.
    "aten.empty.memory_format": elementwise.filled(0),
    "aten.empty_like.default": elementwise.filled(0),
    "aten.new_empty.default": elementwise.filled(0),
    "aten.arange.default": elementwise.arange,
    "aten.arange.start": elementwise.arange,
    "aten.arange.start_step": elementwise.arange,
    # Contractions, norms, losses.
    "aten.matmul.default": network.contract("matmul", "self", "other"),
    "aten.mm.default": network.contract("mm", "self", "mat2"),
    "aten.bmm.default": network.contract("bmm", "self", "mat2"),
    "aten.mv.default": network.contract("mv", "self", "vec"),
    "aten.dot.default": network.contract("dot", "self", "tensor"),
    "aten.linear.default": network.contract("linear", "input", "weight", "bias"),
    "aten.addmm.default": network.contract(
        "addmm", "self", "mat1", "mat2", beta="beta", alpha="alpha"
    ),
    "aten.baddbmm.default": network.contract(
        "baddbmm", "self", "batch1", "batch2", beta="beta", alpha="alpha"
    ),
    "aten.softmax.int": network.softmax("softmax"),
    "aten._safe_softmax.default": network.safe_softmax,
    "aten._softmax.default": network.softmax("softmax"),
    "aten.log_softmax.int": network.softmax("log_softmax"),
    "aten._log_softmax.default": network.softmax("log_softmax"),
    "aten.layer_norm.default": network.layer_norm,
    "aten.native_layer_norm.default": network.layer_norm_native,
    "aten.rms_norm.default": network.rms_norm,
    "aten.group_norm.default": network.group_norm,
    "aten._native_batch_norm_legit_functional.default": network.batch_norm_training,
    "aten._native_batch_norm_legit.no_stats": network.batch_norm_fresh,
    "aten._native_batch_norm_legit_no_training.default": network.batch_norm_inference,
    "aten.cross_entropy_loss.default": network.cross_entropy,
    "aten.nll_loss_forward.default": network.nll_loss,
    "aten.mse_loss.default": network.loss("mse_loss"),
    "aten.smooth_l1_loss.default": network.loss("smooth_l1_loss", "beta"),
    "aten.huber_loss.default": network.loss("huber_loss", "delta"),
    "aten.binary_cross_entropy.default": network.loss("binary_cross_entropy"),
    "aten.binary_cross_entropy_with_logits.default": network.loss(
        "binary_cross_entropy_with_logits"
    ),
    # Gathers and scatters.
    "aten.embedding.default": views.embedding,
    "aten.gather.default": views.gather,
    "aten.index_select.default": views.index_select,
    "aten.index.Tensor": views.index,
    "aten._unsafe_index.Tensor": views.index,
    "aten.index_put.default": views.index_put,
    "aten.scatter.value": views.scatter_value,
    "aten.scatter.src": views.scatter("scatter"),
    "aten.scatter_add.default": views.scatter("scatter_add"),
    "aten.index_add.default": views.index_add,
    "aten.slice_scatter.default": views.slice_scatter,
    "aten.select_scatter.default": views.select_scatter,
    "aten.as_strided_scatter.default": views.as_strided_scatter,
    # Windows, attention, chance.
    "aten.conv1d.default": network.convolution("conv1d", 1),
    "aten.conv2d.default": network.convolution("conv2d", 2),
    "aten.max_pool2d.default": network.pool(
        "max_pool2d", "kernel_size", "stride", "padding", "dilation", "ceil_mode"
    ),
    "aten.avg_pool2d.default": network.pool(
        "avg_pool2d", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad",
        "divisor_override",
    ),
    "aten._adaptive_avg_pool2d.default": network.pool("adaptive_avg_pool2d", "output_size"),
    "aten.scaled_dot_product_attention.default": network.attention,
    "tilewright.dropout.default": dropout,
}  # fmt: skip
