"""Machines and prices: what a device and its links can do, what a model holds and computes."""

from tilewright.cost.accounting import (
    RECOMPUTE,
    Flops,
    LayerParameters,
    active_parameters,
    embedding_parameters,
    forward_flops,
    hardware_flops,
    head_flops,
    head_parameters,
    layer_flops,
    layer_parameters,
    model_flops,
    norm_parameters,
    parameters,
    recomputed_flops,
    tokens_per_day,
    utilization,
)
from tilewright.cost.collectives import (
    COLLECTIVES,
    Level,
    MessageProgram,
    Network,
    build_program,
    crossovers,
    fit_times,
    lower_bound,
    network_of,
    parse_program,
    price,
    prices,
    program_of,
    select,
    show_program,
    simulate,
    variants_of,
    verify,
)
from tilewright.cost.machine import Constants, Device, Link, Machine, machine_lines, preset_names
from tilewright.cost.memory import (
    OPTIMIZERS,
    Split,
    State,
    embedding_activation_bytes,
    head_activation_bytes,
    interleaving_factor,
    kv_cache_bytes,
    layer_activation_bytes,
    parameter_server_traffic,
    ring_traffic,
    stage_parameters,
    state_bytes,
    zero_traffic,
)
from tilewright.cost.model_spec import ModelSpec, model_names, specify
from tilewright.cost.quantity import parse_quantity, show_quantity

__all__ = [
    "COLLECTIVES", "Level", "MessageProgram", "Network", "build_program", "crossovers", "fit_times",
    "lower_bound", "network_of", "parse_program", "price", "prices", "program_of", "select",
    "show_program", "simulate", "variants_of", "verify",
    "OPTIMIZERS", "RECOMPUTE", "Constants", "Device", "Flops", "LayerParameters", "Link",
    "Machine", "ModelSpec", "Split", "State", "active_parameters", "embedding_activation_bytes",
    "embedding_parameters", "forward_flops", "hardware_flops",
    "head_activation_bytes", "head_flops", "head_parameters", "interleaving_factor",
    "kv_cache_bytes", "layer_activation_bytes", "layer_flops", "layer_parameters", "machine_lines",
    "model_flops",
    "model_names", "norm_parameters", "parameter_server_traffic", "parameters", "parse_quantity",
    "preset_names", "recomputed_flops", "ring_traffic", "show_quantity", "specify",
    "stage_parameters", "state_bytes", "tokens_per_day", "utilization", "zero_traffic",
]  # fmt: skip
