"""The contenders that run on torch: eager, torch.compile, Tilewright, and the ceiling.

The idea: `python -m bench.worker CONTENDER MODE FOLDER THREADS` reads a case from its folder and
serves the parent's requests; the imports of a contender happen before anything is timed.
Does not know other contenders' processes.
"""

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench import cases
from bench.ceilings import fma_ceiling
from bench.protocol import Prepare, Running, serve

CEILING = "ceiling"
_MODES = ExitStack()  # inference enters torch's mode once, as a server does, and not at each call


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to run a case: what to import beforehand, and how to begin in each mode."""

    name: str
    imports: tuple[str, ...]
    train: Callable[[cases.Loaded], Callable[[], Tensor]]
    infer: Callable[[cases.Loaded], Callable[[], Tensor]]


def _eager_train(loaded: cases.Loaded) -> Callable[[], Tensor]:
    return _torch_step(loaded, lambda x, y: loaded.loss(loaded.model(x), y))


def _eager_infer(loaded: cases.Loaded) -> Callable[[], Tensor]:
    model, inputs = loaded.model, loaded.inputs
    _MODES.enter_context(torch.inference_mode())
    return lambda: model(inputs)  # type: ignore[no-any-return]


def _compile_train(options: dict[str, Any]) -> Callable[[cases.Loaded], Callable[[], Tensor]]:
    def begin(loaded: cases.Loaded) -> Callable[[], Tensor]:
        def whole(x: Tensor, y: Tensor) -> Tensor:
            return loaded.loss(loaded.model(x), y)

        return _torch_step(loaded, _compiled(whole, options))

    return begin


def _compile_infer(
    options: dict[str, Any], *, freezing: bool
) -> Callable[[cases.Loaded], Callable[[], Tensor]]:
    def begin(loaded: cases.Loaded) -> Callable[[], Tensor]:
        if freezing:
            from torch._inductor import config

            config.freezing = True
        return _without_gradients(_compiled(loaded.model, options), loaded.inputs)

    return begin


def _compiled(function: Callable[..., Tensor], options: dict[str, Any]) -> Callable[..., Tensor]:
    """As a whole, recurrent layers included, which it leaves out unless it is told."""
    from torch._dynamo import config

    config.allow_rnn = True
    return torch.compile(function, fullgraph=True, **options)


def _without_gradients(compiled: Callable[..., Any], inputs: Tensor) -> Callable[[], Tensor]:
    _MODES.enter_context(torch.no_grad())
    return lambda: compiled(inputs)  # type: ignore[no-any-return]


def _torch_step(
    loaded: cases.Loaded, forward: Callable[[Tensor, Tensor], Tensor]
) -> Callable[[], Tensor]:
    optimizer = loaded.case.optimizer.build(loaded.model)
    inputs, targets = loaded.inputs, loaded.targets

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = forward(inputs, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _tilewright_train(*, library: bool = True) -> Callable[[cases.Loaded], Callable[[], Tensor]]:
    def begin(loaded: cases.Loaded) -> Callable[[], Tensor]:
        import tilewright as tw

        optimizer = loaded.case.optimizer.build(loaded.model)
        batch = (loaded.inputs, loaded.targets)
        options = tw.Options(library=library)
        trained = tw.train_step(loaded.model, loaded.loss, optimizer, *batch, options=options)
        return lambda: trained(*batch)

    return begin


def _tilewright_infer(*, library: bool = True) -> Callable[[cases.Loaded], Callable[[], Tensor]]:
    def begin(loaded: cases.Loaded) -> Callable[[], Tensor]:
        import tilewright as tw

        model, inputs = loaded.model, loaded.inputs
        with torch.no_grad():
            compiled = tw.compile(model, inputs, options=tw.Options(frozen=True, library=library))
        return _without_gradients(compiled, inputs)

    return begin


_INDUCTOR = ("torch._dynamo", "torch._inductor.compile_fx")
_TILEWRIGHT = ("tilewright.compiler", "tilewright.train", "tilewright.runtime")
_TUNED = {"mode": "max-autotune"}

CONTENDERS: tuple[Contender, ...] = (
    Contender("eager", (), _eager_train, _eager_infer),
    Contender("compile-default", _INDUCTOR, _compile_train({}), _compile_infer({}, freezing=False)),
    Contender(
        "compile-max-autotune",
        _INDUCTOR,
        _compile_train(_TUNED),
        _compile_infer(_TUNED, freezing=False),
    ),
    # Freezing is about weights that do not change: in training it is the default mode.
    Contender(
        "compile-freezing", _INDUCTOR, _compile_train({}), _compile_infer(_TUNED, freezing=True)
    ),
    Contender("tilewright", _INDUCTOR + _TILEWRIGHT, _tilewright_train(), _tilewright_infer()),
    Contender(
        "tilewright-own",
        _INDUCTOR + _TILEWRIGHT,
        _tilewright_train(library=False),
        _tilewright_infer(library=False),
    ),
)


def prepare_case(contender: Contender, mode: str, folder: Path) -> Prepare:
    """Load the case; beginning compiles it and takes a first step."""

    def prepare() -> Callable[[], Running]:
        loaded = cases.read(folder)
        loaded.model.train(mode == "train")
        initial = {k: v.clone() for k, v in loaded.model.state_dict().items()}

        def begin() -> Running:
            step = (contender.train if mode == "train" else contender.infer)(loaded)
            first = step()

            def observe() -> list[float]:
                if mode == "infer":
                    return cases.sample(first)
                later = [step().item() for _ in range(cases.CHECKED_STEPS - 1)]
                return [first_loss, *later]

            first_loss = first.item() if mode == "train" else 0.0
            restart = _restart(loaded, initial) if mode == "train" else _nothing
            return Running(step, _nothing, restart, observe, {"torch": torch.__version__})

        return begin

    return prepare


def prepare_ceiling(threads: int) -> Callable[[], Running]:
    """Fused multiply-adds on so many threads, the machine's best rate; it tells their number."""
    ceiling = fma_ceiling(threads)

    def observe() -> list[float]:
        return [float(ceiling.work)]

    return lambda: Running(ceiling.call, _nothing, _nothing, observe, {})


def _restart(loaded: cases.Loaded, initial: dict[str, Tensor]) -> Callable[[], None]:
    def restart() -> None:
        with torch.no_grad():
            for name, value in loaded.model.state_dict().items():
                value.copy_(initial[name])

    return restart


def _nothing(*_: Any) -> None:
    """Torch on CPU returns when the result is there; inference changes no state."""


def main() -> None:
    """Serve one contender."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contender")
    parser.add_argument("mode", choices=cases.MODES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("threads", type=int)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if asked.contender == CEILING:
        serve(lambda: prepare_ceiling(asked.threads))
        return
    table = {contender.name: contender for contender in CONTENDERS}
    contender = table[asked.contender]
    serve(prepare_case(contender, asked.mode, asked.folder), contender.imports)


if __name__ == "__main__":
    main()
