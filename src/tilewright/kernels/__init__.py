"""From a body of formulas to the text of one C function.

The idea: a fused node's formulas share loops; `plan` finds which, a recipe makes a schedule of them
(`loops`), which is printed as C: a self-contained text whose name is its hash.  `emit` is the way
in.

This package does not know a compiler, threads, or what a kernel is for.
"""

from tilewright.kernels.attention import DTYPES as ATTENTION_DTYPES
from tilewright.kernels.attention import RECIPE as ATTENTION_RECIPE
from tilewright.kernels.attention import (
    Attention,
    Strides,
    attention_source,
    attention_words,
    cuts,
    emit_attention,
    emit_attention_grad,
    is_narrow,
    query_blocks,
)
from tilewright.kernels.contraction import DTYPES as PRODUCT_DTYPES
from tilewright.kernels.contraction import LIMITS as KNOB_LIMITS
from tilewright.kernels.contraction import (
    LINE,
    LOOPS,
    SLICE,
    SPAN,
    SPREAD,
    TALL,
    Product,
    Role,
    Tiling,
    blocks,
    described_product,
    emit_product,
    emit_slices,
    grouped_rows,
    is_rounded,
    keeps,
    merged,
    packed_columns,
    product_extents,
    sums_along,
    tile_shape,
    tiles,
    usual_tiling,
)
from tilewright.kernels.contraction import RECIPE as PRODUCT_RECIPE
from tilewright.kernels.demands import Demand, Demands, demands
from tilewright.kernels.depthwise import (
    DEPTHWISE_DTYPES,
    MOST_COPIED,
    Depthwise,
    depthwise_text,
    emit_depthwise,
)
from tilewright.kernels.emit import (
    Emitted,
    choose_recipe,
    emit,
    emit_naive,
    lies_anyhow,
    read_together,
)
from tilewright.kernels.epilogue import Epilogue, Following, print_epilogue
from tilewright.kernels.traffic import kernel_loops, moved
from tilewright.kernels.winograd import (
    FEW_SQUARES,
    MOST_INPUTS,
    WINOGRAD_DTYPES,
    Winograd,
    emit_winograd,
    emit_winograd_at_once,
    emit_winograd_weights,
    winograd_text,
)
from tilewright.kernels.winograd_gradient import (
    WinogradGradient,
    emit_gradient_of_kernels,
    emit_sums,
    emit_transformed_image,
    emit_transformed_tangent,
    winograd_gradient_text,
)

__all__ = [
    "emit_depthwise",
    "depthwise_text",
    "Depthwise",
    "MOST_COPIED",
    "DEPTHWISE_DTYPES",
    "ATTENTION_DTYPES",
    "ATTENTION_RECIPE",
    "KNOB_LIMITS",
    "PRODUCT_DTYPES",
    "PRODUCT_RECIPE",
    "LINE",
    "LOOPS",
    "SLICE",
    "SPAN",
    "SPREAD",
    "TALL",
    "Role",
    "merged",
    "grouped_rows",
    "is_rounded",
    "packed_columns",
    "Attention",
    "Demand",
    "Demands",
    "demands",
    "Emitted",
    "Epilogue",
    "Following",
    "Product",
    "Strides",
    "Tiling",
    "attention_source",
    "attention_words",
    "query_blocks",
    "choose_recipe",
    "blocks",
    "cuts",
    "described_product",
    "product_extents",
    "sums_along",
    "emit",
    "emit_attention",
    "emit_attention_grad",
    "emit_gradient_of_kernels",
    "emit_sums",
    "emit_transformed_image",
    "emit_transformed_tangent",
    "emit_naive",
    "emit_product",
    "emit_slices",
    "emit_winograd",
    "emit_winograd_at_once",
    "emit_winograd_weights",
    "winograd_gradient_text",
    "winograd_text",
    "FEW_SQUARES",
    "MOST_INPUTS",
    "WINOGRAD_DTYPES",
    "Winograd",
    "WinogradGradient",
    "is_narrow",
    "keeps",
    "lies_anyhow",
    "print_epilogue",
    "read_together",
    "kernel_loops",
    "moved",
    "tile_shape",
    "tiles",
    "usual_tiling",
]
