"""Every sample of the operator table as a case: its graph, its arrays, and the same in torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from _pytest.mark.structures import ParameterSet
from tests.sweep import collected

from tilewright.base.dtypes import BY_NAME, BY_TORCH_NAME, DType
from tilewright.base.errors import UNKNOWN, Origin
from tilewright.graph.build import Builder
from tilewright.graph.evaluate import evaluate, evaluate_formula
from tilewright.graph.evaluate_scalar import uniform as uniform_numbers
from tilewright.graph.ir import FORMULA, Attr, Formula, Graph, Node, TensorType, Value
from tilewright.graph.passes import run as run_passes
from tilewright.ops import TABLE, Operator, Sample, eager
from tilewright.ops.operator import Operand, apply
from tilewright.ops.samples import arrays
from tilewright.optimize.expand import Expand

Array = np.ndarray


@dataclass(frozen=True)
class Case:
    """One operator on one sample.

    graph: a single node of the operator.  wanted: for each input, whether its gradient is asked
    for (a floating operand that is not written `c[...]`).
    """

    operator: Operator
    sample: Sample
    graph: Graph
    inputs: tuple[Array, ...]
    wanted: tuple[bool, ...]

    @property
    def node(self) -> Node:
        return self.graph.nodes[0]


def make(operator: Operator, sample: Sample, dtypes: Mapping[int, DType] | None = None) -> Case:
    """Build a case; `dtypes` replaces the element types of operands, by position."""
    builder = Builder("case")
    operands: list[Operand] = []
    tensors: list[Array] = []
    wanted: list[bool] = []
    for at, (text, item) in enumerate(zip(sample.inputs, arrays(sample), strict=True)):
        if not isinstance(item, np.ndarray):
            operands.append(item)
            continue
        dtype = (dtypes or {}).get(at, BY_TORCH_NAME[item.dtype.name])
        operands.append(builder.input("x", TensorType(item.shape, dtype)))
        tensors.append(item.astype(dtype.numpy))
        wanted.append(dtype.kind == "float" and not str(text).startswith("c"))
    results = put(builder, operator.name, operands, dict(sample.attrs))
    return Case(operator, sample, builder.finish(results), tuple(tensors), tuple(wanted))


def put(
    builder: Builder,
    name: str,
    operands: Sequence[Operand],
    attrs: Mapping[str, Attr],
    origin: Origin = UNKNOWN,
) -> tuple[Value, ...]:
    """Emit with attributes from a mapping; always a tuple of results."""
    return apply(builder, TABLE[name], *operands, origin=origin, names=(), **dict(attrs))


def parameters(
    names: Sequence[str] = (), *, eager_only: bool = False, often: Sequence[str] = ()
) -> list[ParameterSet]:
    """Return every sample of the table (or of the operators named) as test parameters.

    Of each operator, or of those that are named `often`, the first is asked by `make test`, the
    others by `make sweep`.
    """
    return collected(
        [
            pytest.param(
                operator,
                sample,
                id=f"{operator.name}-{at}",
                marks=pytest.mark.sweep if at or (often and operator.name not in often) else (),
            )
            for operator in TABLE.values()
            if (not names or operator.name in names) and (operator.eager or not eager_only)
            for at, sample in enumerate(operator.samples)
        ]
    )


def expanded(graph: Graph) -> Graph:
    """Put every composite's graph in its place, in bodies too, until none is left."""
    return run_passes(graph, (Expand(),))


def run(graph: Graph, inputs: Sequence[Array] | Mapping[str, Array]) -> tuple[Array, ...]:
    """Evaluate a graph that may hold composites."""
    return evaluate(expanded(graph), inputs)


def to_torch(array: Array) -> torch.Tensor:
    if array.dtype == BY_NAME["bf16"].numpy:
        return torch.tensor(array.astype(np.float32)).bfloat16()
    return torch.tensor(array)


def to_numpy(tensor: torch.Tensor) -> Array:
    plain = tensor.detach()
    if plain.dtype == torch.bfloat16:
        return plain.float().numpy().astype(BY_NAME["bf16"].numpy)
    return plain.numpy()


def uniform(seed: torch.Tensor, shape: Sequence[int], stream: int) -> torch.Tensor:
    """What an eager form may use: the generator over row-major positions."""
    count = int(np.prod(list(shape)))
    place = np.arange(count, dtype=np.int64) + (stream << 32)
    drawn = uniform_numbers(np.asarray(seed.numpy()), place)
    return torch.tensor(np.asarray(drawn).reshape(tuple(shape)))


def in_torch(case: Case, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return torch's results for the case's operands."""
    names = tuple(f"tensors[{at}]" for at in range(len(tensors)))
    scope = {"torch": torch, "uniform": uniform, "tensors": list(tensors)}
    made = eval(eager(case.node, names), scope)
    return (made,) if isinstance(made, torch.Tensor) else tuple(made)


def formula_nodes(graph: Graph) -> list[Node]:
    return [node for node in expanded(graph).nodes if node.formula is not None]


def formula_values(case: Case) -> list[tuple[Node, list[Array]]]:
    """Return every formula that the operator stands for, as often as it is evaluated, with the
    values of its operands."""
    found: list[tuple[Node, list[Array]]] = []

    def record(
        formula: Formula, arrays: Sequence[Array], *, wide: bool = False, origin: Origin = UNKNOWN
    ) -> Array:
        types = (TensorType(array.shape, BY_TORCH_NAME[array.dtype.name]) for array in arrays)
        inputs = tuple(map(Value, formula.operands, types))
        outputs = (Value("y", formula.type),)
        found.append((Node(FORMULA, inputs, outputs, formula=formula), list(arrays)))
        return evaluate_formula(formula, arrays, wide=wide, origin=origin)

    evaluate(expanded(case.graph), case.inputs, formula=record)
    return found
