"""Kernels are raced on the same operands, agree, and are held against the right ceiling."""

import pytest
import torch
import torch.nn.functional as F
from bench import cpu_kernels as bench
from bench import machine
from bench.ceilings import BLOCK, VECTORS, Ceiling, copy_ceiling, copy_past_caches
from bench.cpu_kernels import Kernel


def test_contenders_compute_the_same_with_and_without_gradients() -> None:
    for backward in (False, True):
        kernel = Kernel("rows", "gelu", F.gelu, lambda: (torch.randn(3, 5),), backward=backward)
        calls = bench.contenders(kernel)
        assert list(calls) == ["torch", "tilewright", "no library"]


def test_a_contender_that_computes_something_else_is_not_raced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench.tw, "compile", lambda function, *_, **__: lambda x: function(x) + 1)
    with pytest.raises(AssertionError):
        bench.contenders(Kernel("rows", "gelu", F.gelu, lambda: (torch.randn(3, 5),)))


def test_every_kernel_has_a_name_of_its_own_and_a_limit() -> None:
    listed = list(bench.kernels(2048))
    assert len({(kernel.group, kernel.name) for kernel in listed}) == len(listed)
    assert all(kernel.flops or kernel.bytes for kernel in listed)


def test_arithmetic_is_held_against_the_peak_and_movement_against_a_copy() -> None:
    product = Kernel("product", "p", F.gelu, tuple, flops=2_000, bytes=100)
    rows = Kernel("rows", "r", F.gelu, tuple, bytes=100)
    ceilings = {"flops": Ceiling(lambda: None, 1_000), "bytes": Ceiling(lambda: None, 1_000)}
    samples = {"torch": [4e-6], "tilewright": [2e-6], "ceiling": [1e-6]}
    found = bench.judge(product, samples, ceilings)
    assert found["limit_us"] == pytest.approx(2.0)
    assert found["tilewright"]["of_ceiling"] == pytest.approx(1.0)
    assert found["tilewright"]["torch_over_ours"][0] == pytest.approx(2.0)
    assert bench.judge(rows, samples, ceilings)["limit_us"] == pytest.approx(0.1)
    assert "2.00  100 %" in bench.line(found)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_copy_past_the_caches_copies_all_whole_blocks(threads: int) -> None:
    if machine.describe()["vectors"] not in VECTORS:
        pytest.skip("there are no such stores here")
    source, copied = torch.randn(10 * BLOCK + 5), torch.zeros(10 * BLOCK + 5)
    copy_past_caches(source, copied, threads)()
    assert torch.equal(copied[: 10 * BLOCK], source[: 10 * BLOCK])
    assert not copied[10 * BLOCK :].any()
    assert copy_ceiling(1000, threads).work == 8000


def test_a_block_is_held_against_the_ceiling_of_its_own_round() -> None:
    product = Kernel("product", "p", F.gelu, tuple, flops=1_000)
    clocks = (1.0, 1.8, 1.2)  # the machine slows down and speeds up
    samples = {
        "torch": [1e-6 * clock for clock in clocks],
        "tilewright": [2e-6 * clock for clock in clocks],
        "ceiling": [5e-7 * clock for clock in clocks],
    }
    found = bench.judge(product, samples, {"flops": Ceiling(lambda: None, 1_000)})
    assert found["torch"]["of_ceiling"] == pytest.approx(0.5)
    assert found["tilewright"]["of_ceiling"] == pytest.approx(0.25)


def test_blocks_alternate_and_count_each_call() -> None:
    order: list[str] = []
    calls = {name: lambda name=name: order.append(name) for name in ("a", "b")}
    samples = bench.race(calls, blocks=3, seconds=0.0)
    assert {name: len(times) for name, times in samples.items()} == {"a": 3, "b": 3}
    # Twice to see how long a call takes; then in each block once to warm up, and once for the time.
    assert "".join(order) == "aabb" + 3 * "aabb"
