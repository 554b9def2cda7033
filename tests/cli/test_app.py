"""The commands: what they print, what they write, and how a mistake is told."""

import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import typer
from rich.console import Console
from rich.text import Text
from tests.cli.test_collective import TIMES
from tests.sweep import swept

from tilewright.cli import contest, demo
from tilewright.cli.app import app
from tilewright.cli.demo import CURVES, TEXT, run_demo
from tilewright.cli.peer import EAGER
from tilewright.cli.session import CHECKPOINT, Plan, Session, open_session
from tilewright.cli.tuned import watch
from tilewright.cli.written_input import read_inputs
from tilewright.compiler.choices import Asked
from tilewright.compiler.tuning import Tuned
from tilewright.cost import Machine, build_program, show_program
from tilewright.graph.ir import Graph
from tilewright.graph.text import parse
from tilewright.kernels.loops_text import parse as parse_nest
from tilewright.kernels.loops_text import show
from tilewright.tune import Measured, Verdict, this_processor

Golden = Callable[[str, str], None]
Command = Callable[..., tuple[int, str, str]]


# ------------------------------------------------------------------------------- as the README says

README = Path(__file__).parents[2] / "README.md"
SAID = re.findall(r"`tilewright ([^`]+)`", README.read_text(encoding="utf-8"))
STANDS_FOR = {"MODEL": "mlp", "NAME": "softmax", "FILE": "messages.txt", "TABLE": "times.csv"}
# To train until the loss is low and to race every peer takes minutes to an hour; to tune, a minute.
SHORTER = {
    "train": ("--steps", "2", "--batch", "4"),
    "bench": ("--help",),
    "tune": ("--seconds", "1"),
}


@pytest.mark.parametrize("said", SAID)
def test_the_commands_of_the_readme_run(
    said: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_models.py").write_text(
        "from torch import nn\n\n\ndef net():\n    return nn.Linear(64, 4)\n"
    )
    (tmp_path / "messages.txt").write_text(show_program(build_program("all-reduce", "ring", 4)))
    (tmp_path / "times.csv").write_text(TIMES)
    verb, *rest = (STANDS_FOR.get(word, word) for word in said.split())
    if verb == "tune":  # what it keeps is not for other tests to find
        monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    code, _, err = command(verb, *rest, *SHORTER.get(verb, ()))
    assert code == 0, err


def test_no_word_of_a_help_text_is_taken_for_markup() -> None:
    """Words in brackets colour what follows, and are not printed."""
    commands: Any = typer.main.get_command(app)
    told = [(name, one) for name, command in commands.commands.items() for one in command.params]
    helps = [f"{name} {one.name}: {getattr(one, 'help', '')}" for name, one in told]
    assert len(helps) > 50
    assert [text for text in helps if Text.from_markup(text).plain != text] == []


def test_the_readme_names_every_command() -> None:
    named = {said.split()[0] for said in SAID}
    assert named == {
        "train",
        "show",
        "op",
        "explain",
        "tune",
        "debug",
        "machine",
        "collective",
        "links",
        "messages",
        "plan",
        "timetable",
        "bench",
    }


# ------------------------------------------------------------------------------------------ tuning


def test_a_model_is_tuned_once_and_known_then(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    code, out, err = command("tune", "mlp", "--seconds", "0.1")
    assert (code, err) == (0, "")
    kernels, measured, left = map(
        int, re.search(r"(\d+) kernels: (\d+) measured now, 0 known, (\d+) left", out).groups()
    )
    assert measured >= 1
    assert kernels == measured + left
    assert len(list((tmp_path / "cache" / "tuned").glob("??/*"))) == measured
    code, out, _ = command("tune", "mlp", "--seconds", "0")
    assert code == 0
    assert f"{kernels} kernels: 0 measured now, {measured} known, {left} left" in out
    _, out, _ = command("explain", "mlp")
    assert out.count("tuned: ") == measured


def test_an_interrupted_tuner_hands_over_what_it_has() -> None:
    def rows() -> Iterator[Tuned]:
        yield first
        raise KeyboardInterrupt

    asked = Asked("k", "a kernel", 1, "own", (), 1, Graph("f", (), (), ()))
    measured = Measured(this_processor(), "k", 1, 1, ())
    first = Tuned(asked, 1, measured, Verdict("own", "", 1.0), known=False)
    assert watch(rows(), 2, Console(quiet=True)) == ([first], False)
    assert watch(iter([first]), 1, Console(quiet=True)) == ([first], True)


# ----------------------------------------------------------------------------------------- looking


def test_op_prints_the_page(command: Command) -> None:
    code, out, _ = command("op", "matmul")
    assert code == 0
    assert out.startswith("matmul\n")
    assert "y[..., m, n] += a[..., m, k] * b[..., k, n]" in out


def test_op_lists_the_table(command: Command) -> None:
    code, out, _ = command("op", "--all")
    assert code == 0
    assert "softmax" in out


def test_machine_prints_what_parses(command: Command) -> None:
    code, out, _ = command("machine", "dgx-a100-80g x 8 nodes, link 800Gb/s")
    assert code == 0
    assert Machine.parse(out) == Machine.parse("dgx-a100-80g x 64, link 800Gb/s")
    code, out, err = command("machine", "here")
    assert code == 0
    assert Machine.parse(out).devices >= 1
    assert "measures a product" in err


def test_show_prints_the_graph(command: Command, golden: Golden) -> None:
    code, out, _ = command("show", "mlp", "--batch", "4")
    assert code == 0
    golden("show_mlp.txt", out)


def test_show_prints_what_a_model_costs(command: Command, tmp_path: Path) -> None:
    code, out, _ = command("show", "gpt2:layers=2", "--cost", "--batch", "4")
    assert code == 0
    assert "4 x 1024 tokens" in out
    (tmp_path / "huge.py").write_text(
        "import torch\nfrom torch import nn\n\n\ndef net():\n"
        "    with torch.device('meta'):\n        return nn.Linear(1 << 20, 1 << 20)\n"
    )
    code, out, err = command("show", "huge:net", "--cost", "--input", f"2x{1 << 20}:float32")
    assert code == 0, err
    assert f"{(1 << 40) + (1 << 20):,}" in out


def test_a_model_by_its_numbers_takes_no_input(command: Command, golden: Golden) -> None:
    code, _, err = command("show", "gpt3-175b", "--cost", "--input", "2x8:int64")
    assert code == 2
    golden("cost_with_an_input.txt", err)


def test_what_show_prints_with_origins_parses(command: Command) -> None:
    _, out, _ = command("show", "mlp", "--batch", "4", "--origins")
    graph = parse(out)
    assert [node.op for node in graph.nodes] == ["linear", "relu", "linear", "relu", "linear"]


def test_show_prints_the_optimized_training_step(command: Command) -> None:
    code, out, _ = command("show", "mlp", "--train", "--optimized")
    assert code == 0
    assert "fused(" in out
    assert "updates %layers_0_weight" in out


def test_show_prints_what_each_pass_does(command: Command) -> None:
    code, out, _ = command("show", "mlp", "--passes")
    assert code == 0
    assert "fuse" in out.lower()
    assert "nodes" in out


def test_explain_counts_library_calls(command: Command) -> None:
    code, out, _ = command("explain", "mlp")
    assert code == 0
    assert "library calls" in out


@pytest.mark.parametrize("what", [("--train",), ()])
def test_explain_measures(command: Command, what: tuple[str, ...]) -> None:
    code, out, _ = command("explain", "mlp", "--measure", *what)
    assert code == 0
    assert "ms a run" in out
    assert "between them" in out


def test_explain_prints_the_loops_of_each_kernel_once(command: Command) -> None:
    code, out, _ = command("explain", "lstm", "--loops")
    assert code == 0
    nests = re.findall(r"(?<=\n)(?:  .*\n)+", out)
    assert nests
    assert len(set(nests)) == len(nests)
    for nest in nests:
        text = textwrap.dedent(nest)
        assert show(parse_nest(text)) == text
        assert "\nparallel " in text


def test_explain_says_where_there_are_no_loops_to_print(command: Command) -> None:
    code, out, _ = command("explain", "mlp", "--loops")
    assert code == 0
    assert "every kernel is a product, with what follows it" in out


def test_debug_compares_every_value_of_the_training_step(command: Command) -> None:
    code, out, _ = command("debug", "mlp")
    assert code == 0
    agreed, of, total = out.split()[:3]
    assert of == "of"
    assert agreed == total
    assert "of mlp's training step agree with eager" in out


BARE = """
import torch
from torch import nn

class Rows(nn.Module):
    def forward(self, table, ids):
        return torch.tanh(table)[ids].sum(-1)

def rows():
    return Rows()
"""
TWO_INPUTS = ("--input", "5x4:float32", "--input", "3:int64:5")


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("batched", ()),  # example_batch, and no loss
        swept("told", ()),  # example_inputs in its module
        swept("bare", TWO_INPUTS),
    ],
)
def test_what_needs_no_training_needs_no_loss(
    name: str, inputs: tuple[str, ...], command: Command, tmp_path: Path
) -> None:
    made = "torch.ones(batch, 4), torch.zeros(3, dtype=torch.int64)"
    more = {
        "bare": "",
        "told": f"def example_inputs(model, batch, seed=0):\n    return {made}\n",
        "batched": "def example_batch(model, batch, seed=0):\n    return torch.ones(batch, 4), 0\n"
        "def rows():\n    return nn.Tanh()\n",
    }[name]
    (tmp_path / f"{name}.py").write_text(BARE + more)
    code, out, _ = command("show", f"{name}:rows", *inputs)
    assert code == 0
    assert "tanh(" in out
    assert ("f32[5, 4]" if inputs else "f32[8, 4]") in out
    code, out, _ = command("explain", f"{name}:rows", *inputs)
    assert code == 0
    assert "kernel launches" in out
    code, out, _ = command("debug", f"{name}:rows", *inputs)
    assert code == 0
    agreed, of, total = out.split()[:3]
    assert (of, agreed) == ("of", total)
    assert f"of {name}:rows's forward pass agree with eager" in out


def test_an_input_on_the_command_line_is_drawn_as_it_says() -> None:
    words = ("2x3:float64", ":float32", "4x0:bool", "1000:int64:3", "5:uint8")
    real, number, empty, ids, zeros = read_inputs(words)
    assert (real.shape, real.dtype) == ((2, 3), torch.float64)
    assert (number.shape, number.dtype) == ((), torch.float32)
    assert (empty.shape, empty.dtype) == ((4, 0), torch.bool)
    assert sorted(set(ids.tolist())) == [0, 1, 2]
    assert (zeros.dtype, zeros.tolist()) == (torch.uint8, [0] * 5)
    assert torch.equal(real, read_inputs(words)[0])


# ---------------------------------------------------------------------------------------- mistakes


WRONG: dict[str, tuple[str, ...]] = {
    "unknown_operator": ("op", "matmull"),
    "op_without_a_name": ("op",),
    "unknown_model": ("show", "transformer"),
    "unknown_module": ("show", "nowhere.models:net"),
    "no_checkpoint": ("train", "mlp", "--resume"),
    "factory_without_batches": ("train", "half:net"),
    "factory_without_loss": ("train", "batches:net"),
    "factory_without_inputs": ("show", "half:net"),
    "input_that_is_no_tensor": ("show", "half:net", "--input", "8x2"),
    "input_that_does_not_fit": ("show", "half:net", "--input", "8x3:float32"),
    "input_of_too_many_values": ("show", "half:net", "--input", "3:int8:500"),
    "input_that_counts_floats": ("show", "half:net", "--input", "3:float32:4"),
    "input_that_is_too_large": ("show", "half:net", "--input", "99999999x99999999:float32"),
    "input_and_train": ("show", "half:net", "--input", "8x2:float32", "--train"),
    "loops_and_measure": ("explain", "mlp", "--loops", "--measure"),
    "input_and_batch": ("explain", "half:net", "--input", "8x2:float32", "--batch", "8"),
    "factory_of_something_else": ("show", "half:number"),
    "no_factory": ("show", "half:nothing"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_told_without_a_traceback(
    name: str, command: Command, golden: Golden, tmp_path: Path
) -> None:
    (tmp_path / "half.py").write_text(
        "from torch import nn\n\n\ndef net():\n    return nn.Linear(2, 2)\n\n\n"
        "def number():\n    return 3\n"
    )
    (tmp_path / "batches.py").write_text(
        "from half import net\nimport torch\n\n\n"
        "def example_batch(model, batch, seed=0):\n    return torch.ones(batch, 2), None\n"
    )
    code, out, err = command(*WRONG[name])
    assert code == 2
    assert "Traceback" not in err
    assert out == ""
    golden(f"{name}.txt", err)


# ---------------------------------------------------------------------------------------- training


def checkpoint(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / CHECKPOINT)


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_resumed_training_ends_where_a_straight_one_does(
    command: Command, tmp_path: Path
) -> None:
    run = ("train", "mlp", "--batch", "4", "--warmup", "2")
    assert command(*run, "--steps", "6", "--out", "straight")[0] == 0
    assert command(*run, "--steps", "3", "--out", "parts")[0] == 0
    halfway = checkpoint(tmp_path / "parts")
    code, out, _ = command(*run, "--steps", "6", "--out", "parts", "--resume")
    assert code == 0
    assert "step 6/6" in out
    assert "held-out loss" in out
    assert same(checkpoint(tmp_path / "parts"), checkpoint(tmp_path / "straight"))
    assert not same(halfway, checkpoint(tmp_path / "straight"))


def test_another_plan_does_not_resume(command: Command, golden: Golden) -> None:
    run = ("train", "mlp", "--batch", "4", "--steps", "1", "--out", "run")
    assert command(*run)[0] == 0
    code, _, err = command(*run, "--lr", "0.5", "--resume")
    assert code == 2
    golden("another_plan.txt", err)


def test_a_model_of_the_user_trains(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom torch import nn\n\n\n"
        "def net():\n    return nn.Linear(3, 2)\n\n\n"
        "def example_batch(model, batch, seed=0):\n"
        "    source = torch.Generator().manual_seed(seed)\n"
        "    return torch.randn(batch, 3, generator=source), torch.zeros(batch, 2)\n\n\n"
        "def loss(output, target):\n    return ((output - target) ** 2).mean()\n"
    )
    code, out, _ = command("train", "mine:net", "--steps", "3")
    assert code == 0
    assert "8 parameters, 8 examples a step" in out
    assert (tmp_path / "out" / "train" / CHECKPOINT).exists()


def checkpoint_of(session: Session, folder: Path) -> dict[str, torch.Tensor]:
    session.save(folder / CHECKPOINT, 8)
    return checkpoint(folder)


STOPPING = """
import os, signal
from torch import nn
import torch

def net():
    return nn.Linear(3, 2)

def example_batch(model, batch, seed=0):
    if seed == 3 and os.path.exists("press"):
        os.kill(os.getpid(), signal.SIGINT)
    source = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 3, generator=source), torch.zeros(batch, 2)

def loss(output, target):
    return ((output - target) ** 2).mean()
"""


def test_ctrl_c_saves_and_says_how_to_go_on(
    command: Command, golden: Golden, tmp_path: Path
) -> None:
    (tmp_path / "stopping.py").write_text(STOPPING)
    run = ("train", "stopping:net", "--steps", "6", "--out")
    assert command(*run, "straight")[0] == 0
    (tmp_path / "press").touch()
    code, out, _ = command(*run, "parts")
    assert code == 130
    golden("ctrl_c.txt", out[out.index("  stopped") :])
    (tmp_path / "press").unlink()
    assert command(*run, "parts", "--resume")[0] == 0
    assert same(checkpoint(tmp_path / "parts"), checkpoint(tmp_path / "straight"))


SMALL = Plan(
    "gpt",
    steps=4,
    batch=2,
    lr=1e-3,
    warmup=2,
    clip=1.0,
    seed=0,
    settings=(("layers", 1), ("width", 32), ("heads", 2), ("length", 16)),
)


@pytest.mark.sweep
def test_the_demo_compares_with_eager_and_goes_on_bit_for_bit(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(contest, "ROUNDS", 1)
    monkeypatch.setattr(contest, "BLOCK_SECONDS", 0.02)
    monkeypatch.setattr(demo, "SAMPLE", 12)
    console = Console(highlight=False, width=200)
    assert run_demo(tmp_path, console, resume=False, plan=SMALL, peers=())
    assert run_demo(tmp_path, console, resume=True, plan=SMALL, peers=(EAGER,))
    out = capsys.readouterr().out
    difference, _, step = out.split("from PyTorch eager: ")[1].partition(" ")
    assert float(difference) < 1e-4
    assert "4 steps compared" in step
    for word in ("time, median", "peak memory", "compile time", "held-out loss"):
        assert word in out
    session = open_session(replace(SMALL, steps=8), None)
    session.train(console)
    straight = checkpoint_of(session, tmp_path_factory.mktemp("straight"))
    assert same(checkpoint(tmp_path), straight)
    assert {path.name for path in tmp_path.iterdir()} == {CHECKPOINT, CURVES, TEXT}
    assert (tmp_path / TEXT).read_text(encoding="utf-8").startswith("def ")
