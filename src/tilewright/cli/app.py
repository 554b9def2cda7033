"""The commands of `tilewright`, and how a user's mistake is told: our text, exit code 2.

The idea: a command parses its words, imports what it needs, calls one thing and prints what that
gives.  Torch is imported only by the commands that need it.

This module does not know what the commands do.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from tilewright.base.errors import OptionError, TilewrightError

USER_MISTAKE = 2
INTERRUPTED = 130
MODEL_HELP = "gpt, gpt-small, mlp, moe, lstm, convnet, or package.module:factory"

app = typer.Typer(
    name="tilewright",
    help="A compiler for PyTorch models: makes them run fast, and shows why.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
Batch = Annotated[int, typer.Option(help="Examples in a batch.", min=1)]
Examples = Annotated[
    int | None, typer.Option("--batch", help="Examples in a batch (default: 8).", min=1)
]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="SHAPE:DTYPE", help="An input, 8x64:float32; repeat for more."),
]
Training = Annotated[bool, typer.Option("--train", help="The training step, not the forward pass.")]


def main() -> None:
    """Run the command line."""
    try:
        app()
    except TilewrightError as error:
        tell(error)
        sys.exit(USER_MISTAKE)


def tell(error: TilewrightError) -> None:
    """Print an error as a user should see it: its name and text, no traceback."""
    console = Console(stderr=True, soft_wrap=True, emoji=False)
    first, _, rest = str(error).partition("\n")
    console.print(Text.assemble((f"{type(error).__name__}: ", "bold red"), (first, "bold")))
    if rest:
        console.print(Text(rest))


@app.command()
def train(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)] = "gpt",
    steps: Annotated[int, typer.Option(help="Steps of the whole run.", min=1)] = 300,
    batch: Batch = 8,
    lr: Annotated[float, typer.Option(help="Learning rate (AdamW), after the warm-up.")] = 1e-3,
    warmup: Annotated[int, typer.Option(help="Steps over which the rate rises.", min=0)] = 20,
    clip: Annotated[float, typer.Option(help="Bound on the norm of all gradients.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of parameters, data and masks.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Where results go (default: out/train, out/demo).")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the checkpoint in --out, bit for bit.")
    ] = False,
    demo: Annotated[
        bool, typer.Option("--demo", help="A byte-level GPT on real text, beside PyTorch.")
    ] = False,
) -> None:
    """Train a model: one compiled graph for each step, with checkpoints."""
    from tilewright.cli.demo import run_demo
    from tilewright.cli.session import Plan, run_training

    console = Console(highlight=False, soft_wrap=True, emoji=False)
    if demo:
        complete = run_demo(out or Path("out/demo"), console, resume=resume)
    else:
        plan = Plan(model, steps, batch, lr, warmup, clip, seed)
        complete = run_training(plan, out or Path("out/train"), console, resume=resume)
    if not complete:
        raise typer.Exit(INTERRUPTED)


@app.command()
def show(
    model: Model,
    batch: Examples = None,
    inputs: Inputs = None,
    train: Training = False,
    optimized: Annotated[
        bool, typer.Option("--optimized", help="After all passes, fused into kernels.")
    ] = False,
    passes: Annotated[
        bool, typer.Option("--passes", help="What each pass does to the number of nodes.")
    ] = False,
    origins: Annotated[
        bool, typer.Option("--origins", help="With loops and the user's lines; parses back.")
    ] = False,
    cost: Annotated[
        bool,
        typer.Option("--cost", help="What it costs; also of gpt3-175b, llama:layers=.., a .json."),
    ] = False,
) -> None:
    """Print a model as a graph, or what it costs."""
    from tilewright.cli.inspect import Look, cost_text, graph_text

    if cost:
        print(cost_text(Look(model, batch, tuple(inputs or ()), train)))
        return
    chosen = "optimized" if optimized else "passes" if passes else "captured"
    look = Look(model, batch, tuple(inputs or ()), train)
    print(graph_text(look, chosen, brief=not origins))


@app.command()
def op(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An operator, e.g. matmul.")] = "",
    every: Annotated[bool, typer.Option("--all", help="The whole table, and Core ATen.")] = False,
) -> None:
    """Print all that is derived from an operator's one line."""
    from tilewright.report import core_lines, coverage, operator_page

    if every == bool(name):
        raise OptionError(
            "op takes the name of one operator, or --all",
            expected="tilewright op matmul, or tilewright op --all",
            found="both" if name else "neither",
        )
    console = Console(highlight=False, soft_wrap=True, emoji=False)
    for text in coverage() if every else operator_page(name):
        console.print(text)
    if every:
        from tilewright.cli.inspect import core_rows

        for text in core_lines(core_rows()):
            console.print(text)


@app.command()
def explain(
    model: Model,
    batch: Examples = None,
    inputs: Inputs = None,
    train: Training = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Run it, and show where the time goes.")
    ] = False,
    loops: Annotated[
        bool, typer.Option("--loops", help="The loops of each kernel, as they are scheduled.")
    ] = False,
) -> None:
    """Print how every value of a model is computed, and why; or its loops; or where time goes."""
    from tilewright.cli.inspect import Look, explanation, kernel_loops, measurement

    if loops and measure:
        raise OptionError(
            "--loops and --measure do not go together",
            expected="one of them",
            found="both",
            mend="run the command once with each",
        )
    look = Look(model, batch, tuple(inputs or ()), train)
    print(kernel_loops(look) if loops else measurement(look) if measure else explanation(look))


@app.command()
def tune(
    model: Model,
    batch: Examples = None,
    inputs: Inputs = None,
    train: Training = False,
    seconds: Annotated[
        float, typer.Option(help="In which kernels are measured, about.", min=0)
    ] = 60.0,
    again: Annotated[bool, typer.Option("--again", help="Measure what is known, too.")] = False,
) -> None:
    """Measure the ways to compute a model's kernels; later compilations take what is faster."""
    from tilewright.cli.inspect import Look
    from tilewright.cli.tuned import run_tuner

    look = Look(model, batch, tuple(inputs or ()), train)
    console = Console(highlight=False, soft_wrap=True, emoji=False)
    if not run_tuner(look, seconds, console, again=again):
        raise typer.Exit(INTERRUPTED)


@app.command()
def machine(
    name: Annotated[
        str,
        typer.Argument(metavar="[NAME]", help='"dgx-a100-80g x 64", or here: measures this host.'),
    ] = "",
) -> None:
    """Print a machine as text that can be edited and given back; without a name, those known."""
    from tilewright.cost import Machine, machine_lines

    if not name:
        print("\n".join(machine_lines()))
    elif name == "here":
        console = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
        print(Machine.here(lambda line: console.print(f"  measures {line}")))
    else:
        print(Machine.parse(name))


@app.command()
def collective(
    name: Annotated[str, typer.Argument(metavar="COLLECTIVE", help="all-reduce, broadcast, ...")],
    machine: Annotated[str, typer.Option(help='"dgx-a100-80g x 64", or here.')] = "dgx-a100-80g",
    ranks: Annotated[int, typer.Option(help="How many take part.", min=1)] = 8,
    size: Annotated[str, typer.Option("--bytes", help="The vector: 64MiB, 1.5GB.")] = "64MiB",
    stride: Annotated[int, typer.Option(help="Every how manieth device is a rank.", min=1)] = 1,
    root: Annotated[int, typer.Option(help="Of a broadcast, reduce, gather, scatter.")] = 0,
    draw: Annotated[str, typer.Option(metavar="ALGORITHM", help="Draw its rounds.")] = "",
    text: Annotated[str, typer.Option(metavar="ALGORITHM", help="Print its messages.")] = "",
    out: Annotated[Path | None, typer.Option(help="With --draw: to this SVG or PNG.")] = None,
) -> None:
    """Price the algorithms of a collective on a machine; draw or print one as messages."""
    from tilewright.cli.collective import collective_lines, question

    asked = question(name, machine, ranks, size, stride=stride, root=root)
    print("\n".join(collective_lines(asked, draw, text, out)))


@app.command()
def links(
    path: Annotated[Path, typer.Argument(metavar="TABLE", help="CSV: size(B), ..., time(us).")],
    ranks: Annotated[int, typer.Option(help="How many took part.", min=2)],
    name: Annotated[str, typer.Option("--collective", help="What was measured.")] = "all-reduce",
) -> None:
    """Fit a latency and a bandwidth to measured times of a collective."""
    from tilewright.cli.collective import fitted_lines

    print("\n".join(fitted_lines(name, ranks, path)))


@app.command()
def messages(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="As `collective --text` prints.")],
    machine: Annotated[str, typer.Option(help='"dgx-a100-80g x 64", or here.')] = "dgx-a100-80g",
    size: Annotated[str, typer.Option("--bytes", help="The vector: 64MiB, 1.5GB.")] = "64MiB",
    stride: Annotated[int, typer.Option(help="Every how manieth device is a rank.", min=1)] = 1,
) -> None:
    """Prove that a message program of yours delivers its collective, price it and draw it."""
    from tilewright.cli.collective import own_lines

    print("\n".join(own_lines(path, machine, size, stride)))


@app.command()
def plan(
    model: Annotated[
        str,
        typer.Argument(
            metavar="[MODEL]",
            help="gpt3-175b, gpt:layers=48,..., a config.json; with --input, a module.",
        ),
    ] = "",
    machine: Annotated[str, typer.Option(help='"dgx-a100-80g x 64", or here.')] = "",
    batch: Annotated[int | None, typer.Option(help="Sequences in a step.", min=1)] = None,
    seq: Annotated[int | None, typer.Option(help="Tokens of a sequence.", min=1)] = None,
    fix: Annotated[str, typer.Option(help="Pinned settings: tp=8,pp=2,recompute=full.")] = "",
    inputs: Inputs = None,
    start: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="A plan to begin with.")
    ] = None,
    tokens: Annotated[float, typer.Option(help="That training is to see.", min=1)] = 300e9,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the plan, to be edited.")
    ] = None,
) -> None:
    """Predict a training step on a machine that need not be there: seconds, bytes, days."""
    from tilewright.cli.planned import planned, show_plan
    from tilewright.cli.save import save_text

    made = planned(model, machine, batch=batch, seq=seq, fix=fix, file=start, inputs=inputs or ())
    if save is not None:
        save_text(save, str(made), "the plan")
    show_plan(made, Console(highlight=False, soft_wrap=True, emoji=False), tokens)
    if save is not None:
        print(f"wrote {save}")


@app.command()
def timetable(
    name: Annotated[str, typer.Argument(metavar="NAME", help="1f1b, zb-h1, dualpipe, ...")] = "",
    read: Annotated[Path | None, typer.Option(help="A timetable's text in place of NAME.")] = None,
    stages: Annotated[
        int | None, typer.Option(help="Ranks of the pipeline (default: 4).", min=1)
    ] = None,
    micro_batches: Annotated[
        int | None, typer.Option(help="Of a step (default: 8).", min=1)
    ] = None,
    chunks: Annotated[int | None, typer.Option(help="Stages on each rank.", min=1)] = None,
    slices: Annotated[int | None, typer.Option(help="Of a sequence (terapipe).", min=1)] = None,
    in_flight: Annotated[int | None, typer.Option(help="Micro-batches (ampnet).", min=1)] = None,
    times: Annotated[
        str,
        typer.Option(metavar="F=..,B=..,W=..,comm=..", help="Of a rank's share; 1:2:3 by rank."),
    ] = "",
    kept: Annotated[float, typer.Option(help="M_W/M_B: kept of activations until W.")] = 0.4,
    search: Annotated[bool, typer.Option("--search", help="Search for a cheaper one.")] = False,
    cap: Annotated[
        float | None, typer.Option(help="Activations it may hold (default: what NAME holds).")
    ] = None,
    barrier: Annotated[
        bool, typer.Option("--barrier", help="Search the shortest step, not the shortest rank.")
    ] = False,
    prove: Annotated[bool, typer.Option("--prove", help="By integer programming.")] = False,
    trials: Annotated[int | None, typer.Option(help="Of a search.", min=1)] = None,
    seed: Annotated[int | None, typer.Option(help="Of a search.")] = None,
    draw: Annotated[Path | None, typer.Option(help="A picture: out.svg or out.png.")] = None,
    save: Annotated[Path | None, typer.Option(help="Where its text goes.")] = None,
    width: Annotated[
        int, typer.Option(help="Characters of the drawing.", min=20, max=10_000)
    ] = 100,
) -> None:
    """Make, read, search, judge and draw the timetable of a pipeline."""
    from tilewright.cli.timetable import (
        Question,
        asked_timetable,
        hunt_for,
        save_timetable,
        timetable_lines,
    )

    given = {"chunks": chunks, "slices": slices, "in-flight": in_flight}
    parts = {option: count for option, count in given.items() if count is not None}
    wanted = {"stages": stages, "micro-batches": micro_batches}
    sizes = {option: count for option, count in wanted.items() if count is not None}
    question = Question(name, read, sizes, parts, times, kept, width)
    hunt = hunt_for(search, cap=cap, barrier=barrier, prove=prove, trials=trials, seed=seed)
    made, before = asked_timetable(question, hunt, lambda text: print(text, file=sys.stderr))
    if save is not None:
        save_timetable(save, made.timetable)
    print("\n".join([*before, *timetable_lines(question, made)]))
    if draw is not None:
        from tilewright.report import plot_timetable

        plot_timetable(draw, made)


@app.command()
def export(
    program: Annotated[Path, typer.Argument(metavar="PROGRAM", help="A saved program.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the C goes.")],
    seed: Annotated[int, typer.Option(help="Of the inputs that go with it.")] = 0,
) -> None:
    """Write a saved program as C that runs, and checks itself, without Python."""
    from tilewright.cli.export import export

    print(export(program, folder, seed))


@app.command()
def debug(model: Model, batch: Examples = None, inputs: Inputs = None) -> None:
    """Compare every node of a model with PyTorch eager; name the first that differs."""
    from tilewright.cli.inspect import Look, compare

    look = Look(model, batch, tuple(inputs or ()))
    compare(look, Console(highlight=False, soft_wrap=True, emoji=False))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(context: typer.Context) -> None:
    """Measure the numbers of the README on this machine (from a checkout of the repository)."""
    from tilewright.cli.measure import run_bench

    raise typer.Exit(run_bench(context.args))
