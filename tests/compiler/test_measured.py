"""What `explain --measure` prints: each step with what it computes and moves, the longest first."""

import re

import pytest
import torch

import tilewright as tw
from tilewright.capture import capture
from tilewright.compiler import build


def table(function, *inputs: torch.Tensor, **options: bool) -> list[str]:
    captured = capture(function, *inputs)
    built = build(captured.graph, tw.Options(**options))
    return built.measure(captured.bind(list(inputs), {}), runs=3).split("\n")


@pytest.mark.parametrize("library", [False, True])
def test_a_product_is_shown_with_its_rate(library: bool) -> None:
    a, b = torch.randn(256, 300), torch.randn(300, 200)
    head, _, row, *_ = table(lambda a, b: a @ b, a, b, library=library)
    assert re.match(r"\w+: \d+\.\d{3} ms a run, the mean of 3, \d+ threads?$", head)
    ms, _, flops, rate, *_ = row.split()
    assert float(flops) == pytest.approx(2 * 256 * 300 * 200 / float(ms) / 1e6, rel=0.1, abs=0.06)
    moved = 4 * (256 * 300 + 300 * 200 + 256 * 200)
    assert float(rate) == pytest.approx(moved / float(ms) / 1e6, rel=0.1, abs=0.06)
    assert ("aten.mm.out" in row) or ("[256, 300] @ [300, 200] f32" in row)


def test_rows_are_sorted_and_add_up() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ w, 1) @ w

    lines = table(function, torch.randn(64, 64), torch.randn(64, 64), fuse=False)
    rows = [line for line in lines[2:-2] if re.match(r" *\d", line)]
    times = [float(line.split()[0]) for line in rows]
    assert times[:-1] == sorted(times[:-1], reverse=True)
    shares = [float(re.search(r"([\d.]+)%", line)[1]) for line in rows]
    assert rows[-1].endswith("between them")
    assert sum(shares) == pytest.approx(100, abs=2)


def test_a_loop_counts_every_iteration() -> None:
    lstm = torch.nn.LSTM(32, 64)
    (product,) = [
        line
        for line in table(lambda x: lstm(x)[0], torch.randn(50, 4, 32))
        if re.search(r"k_\w+ \[4, 64\] @ \[64, 256\]", line)
    ]
    ms, _, flops = product.split()[:3]
    assert float(flops) == pytest.approx(50 * 2 * 4 * 64 * 256 / float(ms) / 1e6, rel=0.1, abs=0.06)


def test_what_a_step_moves_stands_beside_its_time() -> None:
    x = torch.randn(1024, 1000)
    (row,) = [line for line in table(lambda x: x * 2 + 1, x) if re.search(r"k_\w+ ", line)]
    for into in row.split()[5:8]:  # nothing is met twice: in and out once, whatever the cache
        assert float(into) == pytest.approx(2 * 4 * x.numel() / 1e6, rel=0.01)


def test_a_product_moves_more_into_a_small_cache() -> None:
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    (row,) = [
        line for line in table(lambda a, b: a @ b, a, b, library=False) if "[512, 512]" in line
    ]
    one, two, three = (float(into) for into in row.split()[5:8])
    assert one > two >= three
    assert three >= 3 * 4 * 512 * 512 / 1e6


def test_a_loop_moves_what_its_steps_do() -> None:
    lstm = torch.nn.LSTM(32, 64)
    lines = table(lambda x: lstm(x)[0], torch.randn(50, 4, 32))
    (row,) = [line for line in lines if re.search(r"k_\w+ \[4, 64\] @ \[64, 256\]", line)]
    assert float(row.split()[7]) >= 50 * 4 * 64 * 256 / 1e6
