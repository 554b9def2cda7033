"""A torch.compile back end that executes captured graphs by replay, gradients included."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from tilewright.capture import (
    Imported,
    functionalize,
    import_functional,
    prepare_dynamo,
    replay,
    restore,
    write_back,
)


@dataclass
class ReplayBackend:
    """Counts and keeps what it has captured."""

    captured: list[Imported] = field(default_factory=list)

    def __call__(
        self, module: fx.GraphModule, examples: Sequence[Any]
    ) -> Callable[..., Sequence[Any]]:
        prepared = prepare_dynamo(module)
        graphs: dict[Any, Imported] = {}
        if not any(isinstance(example, torch.SymInt) for example in examples):
            graphs[_sizes(examples)] = import_functional(functionalize(prepared, examples))
            self.captured.extend(graphs.values())

        @torch._dynamo.disable
        def run(*values: Any) -> Sequence[Any]:
            sizes = _sizes(values)
            if sizes not in graphs:
                graphs[sizes] = import_functional(functionalize(prepared, values))
                self.captured.append(graphs[sizes])
            return run_imported(graphs[sizes], values)

        return run


def _sizes(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in values)


def run_imported(imported: Imported, values: Sequence[Any]) -> Sequence[Any]:
    """Replay with the values of one call of the Dynamo graph."""
    inputs = [values[record.position] for record in imported.inputs]
    mutated = {mutation.input for mutation in imported.mutations}
    # What backward reads of a mutated input is its old value.
    fed = [value.clone() if at in mutated else value for at, value in enumerate(inputs)]
    outputs = replay(imported.graph, [*fed, *imported.constants])
    write_back(imported.mutations, inputs, outputs)
    return restore(imported.results, inputs, outputs)
