"""ONNX Runtime as a contender, and the export of a case's model to ONNX.

The idea: exporting (torch's own exporter) and serving are two runs of this file, so that torch is
not in the process that is measured.  Runs in the peers' environment.  Inference only.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.protocol import Prepare, Running, sample, serve


def export(folder: Path) -> None:
    """Write the case's model, in evaluation mode, as `model.onnx` beside its weights."""
    import torch

    from bench import cases

    loaded = cases.read(folder)
    program = torch.onnx.export(loaded.model.eval(), (loaded.inputs,), dynamo=True, verbose=False)
    assert program is not None, "the exporter gives a program when no file is named"
    program.save(folder / "model.onnx")


def prepare_case(folder: Path, threads: int) -> Prepare:
    """Load the batch; beginning opens a session (all graph optimizations) and runs it once."""
    import onnxruntime  # type: ignore[import-not-found]

    def prepare() -> Callable[[], Running]:
        with np.load(folder / "setup.npz") as arrays:
            inputs = arrays["inputs"]

        def begin() -> Running:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
            session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)
            feed = {session.get_inputs()[0].name: inputs}

            def step() -> np.ndarray:
                output: np.ndarray = session.run(None, feed)[0]
                return output

            first = step()

            def observe() -> list[float]:
                return sample(first.reshape(-1))

            notes = {"onnxruntime": onnxruntime.__version__}
            return Running(step, lambda _: None, lambda: None, observe, notes)

        return begin

    return prepare


def main() -> None:
    """`serve FOLDER THREADS` or `export FOLDER`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("act", choices=("serve", "export"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("threads", type=int, nargs="?", default=1)
    asked = parser.parse_args()
    if asked.act == "export":
        export(asked.folder)
        sys.exit(0)
    serve(prepare_case(asked.folder, asked.threads))


if __name__ == "__main__":
    main()
