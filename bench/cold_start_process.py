"""One start, measured from inside a process of its own: compiled, found again, or loaded.

The idea: `compile` starts a case as its contender in `bench.worker` does and can save what it made,
`load` runs what was saved; torch is imported only by the first, or where a Program calls it.
Does not know which caches there are.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from bench.protocol import cpu_seconds, sample

T = TypeVar("T")


class _Clock:
    """Wall and processor seconds spent in calls so far (mutable)."""

    def __init__(self) -> None:
        self.wall = 0.0
        self.cpu = 0.0

    def around(self, function: Callable[..., T]) -> Callable[..., T]:
        def timed(*args: Any, **kwargs: Any) -> T:
            wall, cpu = time.perf_counter(), cpu_seconds()
            try:
                return function(*args, **kwargs)
            finally:
                self.wall += time.perf_counter() - wall
                self.cpu += cpu_seconds() - cpu

        return timed

    def told(self, name: str) -> dict[str, float]:
        return {f"{name}_wall": self.wall, f"{name}_cpu": self.cpu}


def compile_case(contender_name: str, mode: str, folder: Path) -> dict[str, Any]:
    """From the call to the first result, imports left out; of that, capturing (ours alone)."""
    import importlib

    from bench.cases import read
    from bench.worker import CONTENDERS

    (contender,) = [one for one in CONTENDERS if one.name == contender_name]
    for name in contender.imports:
        importlib.import_module(name)
    loaded = read(folder)
    loaded.model.train(mode == "train")
    begin = contender.train if mode == "train" else contender.infer
    whole, capturing = _Clock(), _Clock()
    if contender_name == "tilewright":
        from tilewright.capture import entry

        with mock.patch.object(entry, "_capture", capturing.around(entry._capture)):
            first, step = whole.around(lambda: _first(begin(loaded)))()
    else:
        first, step = whole.around(lambda: _first(begin(loaded)))()
    told = whole.told("start") | capturing.told("capture") | {"observed": _sample(first)}
    return told | _later(step)


def _first(step: Callable[[], T]) -> tuple[T, Callable[[], T]]:
    return step(), step


def _later(step: Callable[[], Any]) -> dict[str, float]:
    """What a step takes once all is ready: the least of three."""
    clocks = [_Clock() for _ in range(3)]
    for clock in clocks:
        clock.around(step)()
    return min(clocks, key=lambda clock: clock.wall).told("step")


def save_case(mode: str, folder: Path, *, library: bool) -> dict[str, Any]:
    """Write the Program of a case, and inputs for it as arrays."""
    import numpy as np
    import torch

    import tilewright as tw
    from bench.cases import read
    from tilewright.compiler.compiled import Compiled

    loaded = read(folder)
    loaded.model.train(mode == "train")
    if mode == "train":
        batch = (loaded.inputs, loaded.targets)
        optimizer = loaded.case.optimizer.build(loaded.model)
        options = tw.Options(library=library)
        step = tw.train_step(loaded.model, loaded.loss, optimizer, *batch, options=options)
        program, inputs = step.program, step.inputs(*batch)
    else:
        options = tw.Options(frozen=True, library=library)
        with torch.no_grad():
            compiled = tw.compile(loaded.model, loaded.inputs, options=options)
        assert isinstance(compiled, Compiled), "sizes do not vary"
        program, inputs = compiled.program, compiled.captured.bind((loaded.inputs,), {})
    program.save(folder / "program")
    arrays = [value.detach().numpy() for value in inputs]
    np.savez(folder / "inputs.npz", *arrays)
    return {"library_calls": tw.load(folder / "program").library_calls}


def load_case(folder: Path, *, library: bool) -> dict[str, Any]:
    """From `tw.load` to the first result; imports are told apart, torch's where it is called."""
    imports, whole = _Clock(), _Clock()

    def begin() -> tuple[Any, Any, Any]:
        import numpy as np

        from tilewright.runtime import load

        if not library:
            return np.load, load, np.asarray
        import torch

        return np.load, load, torch.from_numpy

    read, load, given = imports.around(begin)()
    with read(folder / "inputs.npz") as kept:
        inputs = [given(kept[name]) for name in kept.files]
    first, step = whole.around(lambda: _first(_runs(load(folder / "program"), inputs)))()
    told = whole.told("start") | imports.told("imports") | _later(step)
    alone = "torch" not in sys.modules
    return told | {"without_torch": alone, "observed": _sample(first[0])}


def _runs(executable: Callable[..., T], inputs: list[Any]) -> Callable[[], T]:
    return lambda: executable(*inputs)


def _sample(first: Any) -> list[float]:
    """What is compared with the reference: of a tensor or an array, or the first of several."""
    value = first[0] if isinstance(first, tuple) else first
    value = value.detach() if hasattr(value, "detach") else value
    return sample(value.reshape(-1))


def main() -> None:
    """Answer on the last line of standard output, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=("compile", "save", "load"))
    parser.add_argument("contender")
    parser.add_argument("mode", choices=("train", "infer"))
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    library = asked.contender != "tilewright-alone"
    match asked.do:
        case "compile":
            answer = compile_case(asked.contender, asked.mode, asked.folder)
        case "save":
            answer = save_case(asked.mode, asked.folder, library=library)
        case _:
            answer = load_case(asked.folder, library=library)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
