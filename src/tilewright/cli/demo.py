"""The main job, `make demo`: a byte-level GPT on real text, and its measures beside PyTorch.

The idea: train first and save; then eager makes the very same run from the very same start, and
what can be compared is.  A slower machine makes fewer steps of the same run, never other ones.

This module does not know how a run is made (`session`) or a contest is held (`contest`).
"""

import contextlib
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from tilewright.base.errors import CheckpointError
from tilewright.cli.contest import Outcome, Score, compete
from tilewright.cli.peer import COMPILE, EAGER
from tilewright.cli.session import CHECKPOINT, Plan, Session, open_session, tell_how_to_resume
from tilewright.models.text import decode
from tilewright.program import LibraryCall, flat
from tilewright.report import plot_losses
from tilewright.train import generate

PLAN = Plan(
    model="gpt",
    steps=300,
    batch=8,
    lr=2e-3,
    warmup=20,
    clip=1.0,
    seed=0,
    settings=(("layers", 4), ("width", 128), ("heads", 4), ("length", 128)),
)
TRAINING_SECONDS = 22.0
PROMPT, SAMPLE = "def ", 240
CURVES, TEXT = "loss_curves.png", "sample.txt"


def run_demo(
    out: Path,
    console: Console,
    *,
    resume: bool,
    plan: Plan = PLAN,
    peers: Sequence[str] = (EAGER, COMPILE),
) -> bool:
    """Train, compare, print the table, write the files; False where it was interrupted."""
    begun = time.perf_counter()
    path = out / CHECKPOINT
    with tempfile.TemporaryDirectory(prefix="tilewright-demo-") as folder:
        scratch = Path(folder)
        start = _keep_start(path, scratch) if resume else None
        _greet(console)
        session = _open(plan, start, scratch, console)
        before = session.held_out()
        history = session.train(console, TRAINING_SECONDS)
        session.save(path, history.stop)
        if history.interrupted:
            tell_how_to_resume(console, path, history.stop)
            return False
        after = session.held_out()
        sample = _write_sample(session, out / TEXT)
        outcome = compete(
            session,
            history.stop,
            seconds=TRAINING_SECONDS,
            peers=peers,
            start=start,
            scratch=scratch,
            console=console,
        )
    plot_losses(
        out / CURVES, history.losses, outcome.losses, start=session.start, name="PyTorch eager"
    )
    console.print(_table(session, outcome), soft_wrap=False)
    console.print(f"  held-out loss {before:.4f} before, {after:.4f} after {history.stop} steps")
    _tell_difference(console, session.start, history.losses, outcome)
    console.print(f"\n  a sample after {PROMPT!r}:\n")
    console.print("\n".join(f"    {line}" for line in sample.splitlines()), markup=False)
    console.print(
        f"\n  wrote {CHECKPOINT}, {CURVES} and {TEXT} to {out}; --resume goes on from there"
    )
    console.print(f"  this took {time.perf_counter() - begun:.0f} s")
    return True


def _keep_start(path: Path, scratch: Path) -> Path:
    """Copy the checkpoint that the run begins from: it will be replaced before eager reads it."""
    if not path.exists():
        raise CheckpointError(
            f"there is no checkpoint {path}", mend="run the demo without --resume first"
        )
    return Path(shutil.copy(path, scratch / CHECKPOINT))


def _greet(console: Console) -> None:
    console.print("\n[bold]A byte-level GPT on the sources of Python's standard library[/bold]")
    console.print(
        f"  Python {platform.python_version()}, torch {torch.__version__}, "
        f"{os.cpu_count()} CPUs, {torch.get_num_threads()} threads"
    )


def _open(plan: Plan, start: Path | None, scratch: Path, console: Console) -> Session:
    """Compile the training step with no kernel cached."""
    with _empty_kernel_cache(scratch):
        session = open_session(plan, start)
    parameters = sum(parameter.numel() for parameter in session.subject.model.parameters())
    program = session.step.program
    calls = sum(isinstance(item, LibraryCall) for item in flat(program.instructions))
    console.print(
        f"  {parameters:,} parameters, {session.data.per_step:,} tokens a step, compiled in "
        f"{session.compile_seconds:.1f} s: {len(program.kernels)} kernels, {calls} library calls"
    )
    return session


@contextlib.contextmanager
def _empty_kernel_cache(scratch: Path) -> Iterator[None]:
    """Compile from nothing, whatever was compiled on this machine before."""
    before = os.environ.get("TILEWRIGHT_CACHE")
    os.environ["TILEWRIGHT_CACHE"] = str(scratch / "kernels")
    try:
        yield
    finally:
        if before is None:
            del os.environ["TILEWRIGHT_CACHE"]
        else:
            os.environ["TILEWRIGHT_CACHE"] = before


def _write_sample(session: Session, path: Path) -> str:
    prompt = torch.tensor(list(PROMPT.encode()))
    ids = generate(session.subject.model, prompt, SAMPLE, context=session.data.context)
    text = decode(ids)
    path.write_text(text, encoding="utf-8")
    return text


# ---------------------------------------------------------------------------------- what is printed


def _table(session: Session, outcome: Outcome) -> Table:
    table = Table(title="one training step", title_justify="left", title_style="bold")
    table.add_column("")
    for kind in outcome.scores:
        table.add_column(kind, justify="right")
    scores = list(outcome.scores.values())
    table.add_row("time, median", *(_number(score.seconds, 1e3, "ms") for score in scores))
    tokens = session.data.per_step / 1e3
    table.add_row(
        "tokens a second",
        *(_number(score.seconds and tokens / score.seconds, 1.0, "k") for score in scores),
    )
    if EAGER in outcome.scores:
        table.add_row("speed beside eager", *_speeds(outcome.scores[EAGER].seconds, scores))
    table.add_row("peak memory", *(_number(score.mib, 1.0, "MiB") for score in scores))
    table.add_row("compile time", *(_number(score.compile_seconds, 1.0, "s") for score in scores))
    failures = [f"{kind}: {score.failure}" for kind, score in outcome.scores.items()]
    table.caption = "\n".join(text for text in failures if not text.endswith(": ")) or None
    return table


def _speeds(eager: float | None, scores: Sequence[Score]) -> list[str]:
    return [
        _number(eager and score.seconds and eager / score.seconds, 1.0, "x") for score in scores
    ]


def _number(value: float | None, scale: float, unit: str) -> str:
    return "-" if value is None else f"{value * scale:,.1f} {unit}"


def _tell_difference(console: Console, start: int, ours: Sequence[float], outcome: Outcome) -> None:
    gaps = [abs(a - b) for a, b in zip(ours, outcome.losses, strict=False)]
    if not gaps:
        console.print("  no run of PyTorch eager to compare with")
        return
    at = gaps.index(max(gaps))
    console.print(
        f"  largest difference of the loss curve from PyTorch eager: {gaps[at]:.2e} "
        f"(at step {start + at + 1}, loss {ours[at]:.4f}; {len(gaps)} steps compared)"
    )
