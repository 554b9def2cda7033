"""Single kernels against torch's on this CPU, and which fraction of the ceiling they reach.

Run `python -m bench.cpu_kernels`.  The idea: ours, ours without any library call, and torch share
one process and one pool of threads, so that blocks may alternate without idle pools in the way; a
block long enough to tell that others ran is run again if they did.  Arithmetic is held against the
fused multiply-adds that all cores reach together in registers, movement against the faster of two
large copies, torch's and one past the caches.  With `--target x86-64-v3` ours are compiled for
AVX2, and torch is held to its own AVX2 code.
Writes `bench/results/cpu_kernels.json`, or `cpu_kernels_TARGET.json`.  Does not know models.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

import tilewright as tw
from bench import machine
from bench.ceilings import Ceiling, copy_ceiling, fma_ceiling
from bench.intervals import median_interval, ratio_interval
from tilewright.runtime import NATIVE

OUT = Path(__file__).resolve().parent / "results" / "cpu_kernels.json"
# What ATen, MKL and oneDNN read when they are loaded.
LIMITS = ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
TORCH = {
    "x86-64": ("default", "SSE4_2", "SSE41"),
    "x86-64-v2": ("default", "SSE4_2", "SSE41"),
    "x86-64-v3": ("avx2", "AVX2", "AVX2"),
    "x86-64-v4": ("avx512", "AVX512", "AVX512_CORE"),
}
FOREIGN = 0.1  # processors that others may use during a block
AGAIN = 20  # times that a disturbed block is run again

Call = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A call to be timed: on tensors that `make` gives, with gradients of them if `backward`.

    flops: of the whole call.  bytes: read and written, each tensor once.
    """

    group: str
    name: str
    function: Callable[..., Tensor]
    make: Callable[[], tuple[Tensor, ...]]
    flops: int = 0
    bytes: int = 0
    backward: bool = False


# ---------------------------------------------------------------------------- what is timed


def kernels(elements: int) -> Iterator[Kernel]:
    """Yield the list; `elements`: of the tensors that are to be larger than any cache."""
    yield from _products()
    yield from _convolutions()
    yield from _attentions()
    yield from _rows(elements)
    yield from _short_rows()
    yield from _functions()


def _products() -> Iterator[Kernel]:
    for n in (32, 64, 128, 256, 512, 1024, 2048, 4096):
        for order in ("NN", "NT", "TN"):
            yield _product((), n, n, n, order)
    yield _product((64,), 64, 64, 64, "NN")
    yield _product((64,), 128, 128, 64, "NT")
    yield _product((64,), 128, 64, 128, "NN")
    for rows in (1, 8, 32):
        yield _product((), rows, 1024, 1024, "NT")
    yield _product((), 1024, 16, 1024, "NN")
    yield _product((), 64, 64, 16384, "TN")


def _product(batch: tuple[int, ...], rows: int, columns: int, terms: int, order: str) -> Kernel:
    def make() -> tuple[Tensor, Tensor]:
        a = (rows, terms) if order[0] == "N" else (terms, rows)
        b = (terms, columns) if order[1] == "N" else (columns, terms)
        return torch.randn(*batch, *a), torch.randn(*batch, *b)

    def function(a: Tensor, b: Tensor) -> Tensor:
        a = a if order[0] == "N" else a.transpose(-2, -1)
        return a @ (b if order[1] == "N" else b.transpose(-2, -1))

    count = torch.Size(batch).numel()
    name = f"{''.join(f'{n} x ' for n in batch)}{rows} x {columns} x {terms} {order}"
    moved = 4 * count * (rows * terms + terms * columns + rows * columns)
    return Kernel("product", name, function, make, 2 * count * rows * columns * terms, moved)


# Channels in and out, side of the window, stride, side of the image: the layers of ResNet-50.
RESNET_50 = (
    (3, 64, 7, 2, 224), (64, 64, 1, 1, 56), (64, 64, 3, 1, 56), (64, 256, 1, 1, 56),
    (256, 128, 1, 1, 56), (128, 128, 3, 2, 56), (128, 128, 3, 1, 28), (128, 512, 1, 1, 28),
    (256, 512, 1, 2, 56), (256, 256, 3, 1, 14), (1024, 256, 1, 1, 14), (512, 512, 3, 1, 7),
)  # fmt: skip


def _convolutions() -> Iterator[Kernel]:
    for inputs, outputs, side, stride, image in RESNET_50:
        for backward in (False, True):
            yield _convolution(inputs, outputs, side, stride, image, backward=backward)


def _convolution(
    inputs: int, outputs: int, side: int, stride: int, image: int, *, backward: bool
) -> Kernel:
    def make() -> tuple[Tensor, Tensor]:
        return torch.randn(4, inputs, image, image), torch.randn(outputs, inputs, side, side)

    def function(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w, stride=stride, padding=side // 2)

    flops = 2 * 4 * outputs * inputs * side * side * (image // stride) ** 2
    name = f"{inputs} to {outputs}, {side} x {side} / {stride}, {image} x {image}"
    times = 3 if backward else 1
    return Kernel(_mode("convolution", backward), name, function, make, times * flops, 0, backward)


def _attentions() -> Iterator[Kernel]:
    for length in (64, 256, 1024, 2048, 4096):
        for backward in (False, True):
            # Half of the scores are masked; backward has five products to forward's two.
            flops = (7 if backward else 2) * 8 * length * length * 64
            make = partial(_tensors, *[(1, 8, length, 64)] * 3)
            function = partial(F.scaled_dot_product_attention, is_causal=True)
            group = _mode("attention", backward)
            yield Kernel(group, f"8 x {length} x 64, causal", function, make, flops, 0, backward)


def _rows(elements: int) -> Iterator[Kernel]:
    width = 1024
    rows = max(1, elements // width)
    shape, size = (rows, width), 4 * rows * width
    weight, targets = torch.randn(width), torch.randint(width, (rows,))
    large = partial(_tensors, shape)
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "add one": lambda x: x + 1,
        "gelu": F.gelu,
        "softmax": lambda x: x.softmax(-1),
        "layer norm": lambda x: F.layer_norm(x, (width,), weight, weight),
        "rms norm": lambda x: F.rms_norm(x, (width,), weight),
    }
    for name, function in functions.items():
        yield Kernel("rows", name, function, large, 0, 2 * size)
    for name in ("gelu", "softmax", "layer norm"):
        # Forward reads x and writes y; backward reads x or y and the tangent and writes another.
        yield Kernel("rows, with gradient", name, functions[name], large, 0, 5 * size, True)

    # What is read alone has less bandwidth than a copy, on many machines: the others' limit.
    yield Kernel("rows", "sum", lambda x: x.sum(-1), large, 0, size)

    def entropy(x: Tensor) -> Tensor:
        return F.cross_entropy(x, targets)

    yield Kernel("rows", "cross-entropy", entropy, large, 0, size)
    yield Kernel("rows, with gradient", "cross-entropy", entropy, large, 0, 3 * size, True)
    ids = torch.randint(50_000, (rows,))
    table = partial(_tensors, (50_000, width))
    yield Kernel("rows", "embedding", lambda t: F.embedding(ids, t), table, 0, 2 * size)


def _short_rows() -> Iterator[Kernel]:
    """Yield rows that end inside a vector, in caches, which may be faster than the large copy."""
    count = 2000
    for width in (31, 48, 77):
        # Rows of any length, as of sequences that are filled up to the longest.
        mask = torch.arange(width) > torch.arange(count)[:, None] % width
        weight = torch.randn(width)
        functions: dict[str, Callable[[Tensor], Tensor]] = {
            "softmax": lambda x: x.softmax(-1),
            "softmax of lengths": lambda x, mask=mask: x.masked_fill(mask, -torch.inf).softmax(-1),
            "layer norm": lambda x, w=weight: F.layer_norm(x, w.shape, w, w),
            "sum": lambda x: x.sum(-1),
        }
        for name, function in functions.items():
            make, moved = partial(_tensors, (count, width)), 4 * count * width
            label = f"{name}, {count} x {width}"
            yield Kernel(
                "short rows", label, function, make, 0, moved if name == "sum" else 2 * moved
            )


FUNCTIONS = (
    "acos", "asin", "atan", "tan", "sin", "cos", "acosh", "asinh", "atanh", "sinh", "cosh", "tanh",
    "exp", "exp2", "expm1", "log", "log1p", "sigmoid", "erf", "erfc", "atan2", "hypot",
)  # fmt: skip


def _functions() -> Iterator[Kernel]:
    """Yield functions of each element, in caches, of arguments that all of them have a value of."""
    count = 1 << 16
    for dtype in (torch.float32, torch.float64):
        for name in FUNCTIONS:
            several = 2 if name in ("atan2", "hypot") else 1

            def make(
                several: int = several, dtype: torch.dtype = dtype, low: bool = name != "acosh"
            ) -> tuple[Tensor, ...]:
                drawn = torch.empty(several, count, dtype=dtype).uniform_(0.05, 0.95)
                return tuple(drawn if low else 1 / drawn)

            label = f"{name}, {count:,} of {str(dtype).removeprefix('torch.')}"
            moved = (several + 1) * count * dtype.itemsize
            yield Kernel("functions", label, getattr(torch, name), make, 0, moved)


def _tensors(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.randn(shape) for shape in shapes)


def _mode(name: str, backward: bool) -> str:
    return f"{name}, with gradient" if backward else name


# ---------------------------------------------------------------------------- contenders


def contenders(kernel: Kernel, target: str = NATIVE) -> dict[str, Call]:
    """Return the calls to be timed, which agree with torch's; ours are compiled for the target."""
    operands = kernel.make()
    calls = {"torch": _call(kernel, kernel.function, operands)}
    for name, options in (
        ("tilewright", tw.Options(target=target)),
        ("no library", tw.Options(library=False, target=target)),
    ):
        asking = [x.detach().requires_grad_(kernel.backward) for x in operands]
        with torch.set_grad_enabled(kernel.backward):
            compiled = tw.compile(kernel.function, *asking, options=options)
        calls[name] = _call(kernel, compiled, operands)
    expected = calls["torch"]()
    for call in calls.values():
        found = call()
        try:
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        except AssertionError:
            # Sums of up to 50,176 terms that end near 0: torch's may be off by more than that (5e-3
            # in the gradient of a 7 x 7 window, where ours is 4e-4).  Doubles are the judge then.
            exact = _call(kernel, kernel.function, [x.double() for x in operands])()
            torch.testing.assert_close(found, exact, rtol=1e-3, atol=1e-3, check_dtype=False)
    return calls


def _call(kernel: Kernel, function: Callable[..., Tensor], operands: Sequence[Tensor]) -> Call:
    if not kernel.backward:

        def forward() -> Any:
            with torch.no_grad():
                return function(*operands)

        return forward
    leaves = [operand.detach().requires_grad_() for operand in operands]
    with torch.no_grad():
        tangent = torch.ones_like(function(*leaves))

    def both() -> Any:
        return torch.autograd.grad(function(*leaves), leaves, tangent)

    return both


def optimizer_step(elements: int, target: str = NATIVE) -> tuple[Kernel, dict[str, Call]]:
    """Return AdamW's step of one parameter whose gradient is given, ours and torch's fused one."""
    models = [nn.ParameterList([torch.randn(elements)]) for _ in range(2)]
    tangent = torch.randn(elements)
    ours, theirs = (torch.optim.AdamW(model.parameters(), fused=True) for model in models)

    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = models[0]

        def forward(self, x: Tensor) -> Tensor:
            return (self.parts[0] * x).sum()

    step = tw.train_step(
        Weighted(),
        lambda y, _: y,
        ours,
        tangent,
        torch.zeros(()),
        options=tw.Options(target=target),
    )

    def eager() -> None:
        theirs.zero_grad()
        (models[1][0] * tangent).sum().backward()
        theirs.step()

    # The product reads two and is summed; the step reads four and writes three.
    kernel = Kernel("optimizer", f"AdamW, {elements:,}", eager, tuple, 0, 9 * 4 * elements)  # type: ignore[arg-type]
    return kernel, {"torch": eager, "tilewright": lambda: step(tangent, torch.zeros(()))}


# ---------------------------------------------------------------------------- timing


def race(calls: dict[str, Call], blocks: int, seconds: float) -> dict[str, list[float]]:
    """Return seconds per call of each contender, in alternating blocks."""
    counts = {name: max(1, round(seconds / _once(call))) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(blocks):
        for name, call in calls.items():
            samples[name].append(_block(call, counts[name]))
    return samples


def _once(call: Call) -> float:
    call()
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _block(call: Call, count: int) -> float:
    taken = float("inf")
    for _ in range(AGAIN):
        call()  # warm again after the others
        with machine.Span() as span:
            for _ in range(count):
                call()
        taken = span.wall / count
        # Processors are counted in ticks of ten milliseconds: shorter blocks are kept unjudged.
        if span.foreign(0.0) <= FOREIGN or span.wall < 0.2:
            break
    return taken


def judge(
    kernel: Kernel, samples: dict[str, list[float]], ceilings: Mapping[str, Ceiling]
) -> dict[str, Any]:
    """Return what is kept of a kernel: medians, ratios to torch, fractions of its ceiling.

    samples: also of the ceiling, which a block of each contender is held against in its own round.
    """
    ceiling = ceiling_of(kernel)
    share = (kernel.flops or kernel.bytes) / ceilings[ceiling].work
    limits = [share * seconds for seconds in samples["ceiling"]]
    found: dict[str, Any] = {"group": kernel.group, "name": kernel.name, "ceiling": ceiling}
    found["limit_us"] = 1e6 * median(limits)
    for name, times in samples.items():
        if name == "ceiling":
            continue
        told = median_interval(times)
        reached = [limit / seconds for limit, seconds in zip(limits, times, strict=True)]
        found[name] = {
            "median_us": 1e6 * told.median,
            "low_us": 1e6 * told.low,
            "high_us": 1e6 * told.high,
            "of_ceiling": median(reached),
        }
        if name != "torch":
            ratio = ratio_interval(samples["torch"], times)
            found[name]["torch_over_ours"] = [ratio.median, ratio.low, ratio.high]
    return found


def ceiling_of(kernel: Kernel) -> str:
    """Return which ceiling a kernel is held against."""
    return "flops" if kernel.flops else "bytes"


def line(found: dict[str, Any]) -> str:
    """Return a kernel's line of the table."""
    cells = [
        f"{found['group']}: {found['name']}".ljust(58),
        f"{found['torch']['median_us']:12,.1f}",
    ]
    for name in ("tilewright", "no library"):
        if name in found:
            ratio, share = found[name]["torch_over_ours"][0], found[name]["of_ceiling"]
            cells.append(f"{found[name]['median_us']:12,.1f} {ratio:5.2f} {100 * share:4.0f} %")
    return "".join(cells)


def main(arguments: Sequence[str] | None = None) -> int:
    """Time the list, write the results as they come, print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.25, help="of a block")
    parser.add_argument("--mebibytes", type=int, default=256, help="of a tensor beyond the caches")
    parser.add_argument("--only", default="", help="kernels whose group or name has this in it")
    parser.add_argument("--target", choices=TORCH, default=NATIVE, help="instructions, both sides")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if options.target and not _is_held(options.target):
        return _run_held(options.target, sys.argv[1:] if arguments is None else arguments)
    out = options.out or OUT.with_stem("_".join(filter(None, (OUT.stem, options.target))))
    elements, threads = options.mebibytes * 2**18, torch.get_num_threads()
    ceilings = {
        "flops": fma_ceiling(threads, options.target),
        "bytes": copy_ceiling(elements, threads),
    }
    console, rows = Console(width=160), []
    chosen = [k for k in kernels(elements) if options.only in f"{k.group}: {k.name}"]
    makers: list[Callable[[], tuple[Kernel, dict[str, Call]]]] = [
        lambda kernel=kernel: (kernel, contenders(kernel, options.target)) for kernel in chosen
    ]
    if options.only in "optimizer: AdamW":
        makers.append(partial(optimizer_step, elements // 4, options.target))
    for make in track(makers, console=Console(stderr=True)):
        kernel, calls = make()
        raced = {**calls, "ceiling": ceilings[ceiling_of(kernel)].call}
        rows.append(judge(kernel, race(raced, options.blocks, options.seconds), ceilings))
        console.print(line(rows[-1]), highlight=False)
        _write(out, rows)
    return 0


def _is_held(target: str) -> bool:
    """Say whether torch was loaded under the limits of a target."""
    return all(
        os.environ.get(name) == value for name, value in zip(LIMITS, TORCH[target], strict=True)
    )


def _run_held(target: str, arguments: Sequence[str]) -> int:
    """Run all this in a process whose torch uses no more instructions than the target has."""
    limits = dict(zip(LIMITS, TORCH[target], strict=True))
    command = [sys.executable, "-m", "bench.cpu_kernels", *arguments]
    return subprocess.run(command, env=os.environ | limits, check=False).returncode


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    content = {
        "machine": machine.describe() | {"threads": torch.get_num_threads()},
        "date": machine.today(),
        "versions": {"torch": torch.__version__},
        "kernels": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".writing")
    scratch.write_text(json.dumps(content, indent=1) + "\n")
    scratch.replace(path)


if __name__ == "__main__":
    sys.exit(main())
