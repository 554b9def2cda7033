"""A saved Program as a contender: inference on NumPy arrays, in a process without torch.

The idea: as with ONNX Runtime, exporting (which needs torch) and serving are two runs of this
file; the pair is what a server would choose between.  Inference only, and only kernels of our own.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

import tilewright as tw
from bench.protocol import Prepare, Running, sample, serve

PROGRAM = "model.program"


def export(folder: Path) -> None:
    """Write the case's model, in evaluation mode, as a Program beside its weights."""
    import torch

    from bench import cases

    loaded = cases.read(folder)
    options = tw.Options(frozen=True, library=False)
    with torch.no_grad():
        compiled = tw.compile(loaded.model.eval(), loaded.inputs, options=options)
    compiled.program.save(folder / PROGRAM)


def prepare_case(folder: Path) -> Prepare:
    """Load the arrays; beginning loads the Program, compiles its kernels and runs it once."""

    def prepare() -> Callable[[], Running]:
        with np.load(folder / "setup.npz") as stored:
            arrays = {name: stored[name] for name in stored.files}

        def begin() -> Running:
            executable = tw.load(folder / PROGRAM)
            roles = [item.role for item in executable.program.inputs]
            given = [
                arrays["inputs" if role.kind == "argument" else f"state.{role.source}"]
                for role in roles
            ]

            def step() -> np.ndarray:
                output: np.ndarray = executable(*given)[0]
                return output

            first = step()

            def observe() -> list[float]:
                return sample(first.reshape(-1))

            return Running(step, lambda _: None, lambda: None, observe, {"numpy": np.__version__})

        return begin

    return prepare


def main() -> None:
    """`serve FOLDER` or `export FOLDER`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("act", choices=("serve", "export"))
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    if asked.act == "export":
        export(asked.folder)
    else:
        serve(prepare_case(asked.folder), ("tilewright.runtime",))


if __name__ == "__main__":
    main()
