"""`argmax=`, `argmin=` side by side: of equal terms the first one, the first NaN before all."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.kernels.harness import body, compile_all, run
from tests.kernels.test_far import scheduled

import tilewright as tw
from tilewright.base.errors import LoopError
from tilewright.graph.evaluate import evaluate
from tilewright.kernels import emit
from tilewright.kernels.loops import Sums, walk
from tilewright.kernels.loops_check import verify
from tilewright.kernels.loops_text import parse, show
from tilewright.kernels.reduce import goes_up

Tensor = torch.Tensor
INFINITY, NAN = float("inf"), float("nan")

CONTENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "all differ": lambda x: x,
    "many equal": lambda x: x.round(),
    "all equal": torch.zeros_like,
    "zeros of both signs": lambda x: x.sign() * 0.0,
    "all the least": lambda x: torch.full_like(x, -INFINITY),
    "all the greatest": lambda x: torch.full_like(x, INFINITY),
    "mostly the least": lambda x: torch.where(x < 1, -INFINITY, x),
    "some NaN": lambda x: torch.where(x > 2, NAN, x),
    "mostly NaN": lambda x: torch.where(x > -2, NAN, x),
    "all NaN": lambda x: torch.full_like(x, NAN),
    "the last is best": lambda x: torch.arange(x.numel()).view(x.shape).to(x.dtype) + x * 0,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", CONTENTS)
def test_the_first_of_the_best_is_found(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(len(name))
    for width in (63, 64, 127, 128, 130, 500, 512, 1000):
        x = CONTENTS[name](torch.randn(3, width)).to(dtype)

        def best(x: Tensor) -> tuple[Tensor, ...]:
            largest, least = x.max(-1), x.min(-1)
            return x.argmax(-1), x.argmin(-1), largest[0], largest[1], least[0], least[1]

        found = tw.compile(best, x)(x)
        whole = x.double().numpy()
        first = [np.argmax(whole, -1), np.argmin(whole, -1)]
        np.testing.assert_array_equal(found[0], first[0])
        np.testing.assert_array_equal(found[1], first[1])
        for k in (0, 1):
            values, places = found[2 + 2 * k : 4 + 2 * k]
            np.testing.assert_array_equal(places, first[k])
            expected = np.take_along_axis(whole, first[k][:, None], -1)[:, 0]
            np.testing.assert_array_equal(values.double().numpy(), expected)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.int8])
def test_integers_at_the_ends_of_their_types(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    for fill in (limits.min, limits.max):
        x = torch.full((2, 600), fill, dtype=dtype)
        x[1, 400:] = limits.max + limits.min - fill
        found = tw.compile(lambda x: (x.argmax(-1), x.argmin(-1)), x)(x)
        np.testing.assert_array_equal(found[0], np.argmax(x.numpy(), -1))
        np.testing.assert_array_equal(found[1], np.argmin(x.numpy(), -1))


@pytest.mark.parametrize("shape", [(7, 300), (3, 5, 130), (600,), (2, 3, 4, 70)])
def test_over_several_dims(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).round()
    assert tw.compile(torch.argmax, x)(x) == int(np.argmax(x.numpy()))
    turned = x.movedim(0, -1)
    assert tw.compile(torch.argmin, turned)(turned) == int(np.argmin(turned.numpy()))


def test_where_some_have_no_term() -> None:
    x, mask = torch.randn(4, 700).round(), torch.rand(4, 700) > 0.7
    mask[2] = False

    def best(x: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, x, -INFINITY).argmax(-1)

    expected = np.argmax(torch.where(mask, x, -INFINITY).numpy(), -1)
    np.testing.assert_array_equal(tw.compile(best, x, mask)(x, mask), expected)
    padded = torch.nn.functional.pad
    function = lambda x: padded(x, (90, 80), value=1.0).argmax(-1)  # noqa: E731
    np.testing.assert_array_equal(tw.compile(function, x)(x), function(x))


@pytest.mark.parametrize(
    ("formula", "lanes"),
    [
        ("i64[4]: y[i<4] argmax= x[i, j<600] at j", 64),
        ("i64[4]: y[i<4] argmin= x[i, j<600] at 3 * j + i", 64),
        ("i64[4]: y[i<4] argmax= x[i, j<100] at j", 32),
        ("i64[4]: y[i<4] argmax= x[i, j<60] at j", 1),
        ("i64[]: y[] argmax= x[i<4, j<600] at i * 600 + j", 64),
        ("i64[]: y[] argmax= x[i<4, j<600] at i * 599 + j", 1),  # two terms have one index
        ("i64[]: y[] argmax= x[i<4, j<600] at i + j * 4", 1),  # four terms side by side are few
        ("i64[4]: y[i<4] argmax= x[i, j<600] at 599 - j", 1),
        ("i64[4]: y[i<4] argmax= x[i, j<600] at j // 2", 1),
        ("i64[4]: y[i<4] argmax= x[i, j<600] at i", 1),
        ("i64[4]: y[i<4] argmax= z[i, j<600] at j", 64),  # of integers
    ],
)
def test_terms_are_side_by_side_where_their_indices_go_up(
    formula: str, lanes: int, tmp_path: Path
) -> None:
    whole = "z[" in formula
    graph = body({"z": "i32[4, 600]"} if whole else {"x": "f32[4, 600]"}, {"y": formula})
    nest = scheduled(graph)
    (sums,) = (item for item in walk(nest.items) if isinstance(item, Sums))
    assert sums.length == lanes
    verify(nest)
    assert parse(show(nest)) == nest
    kernel = emit(graph)
    library = compile_all([kernel], tmp_path)
    for seed in range(4):
        x = np.random.default_rng(seed).integers(-2, 2, (4, 600)).astype(np.float32)
        x[seed % 4, 7 * seed :: 50] = np.nan if seed and not whole else 2
        x = x.astype(np.int32) if whole else x
        _, (found,) = run(library, kernel, graph, [x])
        np.testing.assert_array_equal(found, evaluate(graph, [x])[0])


@pytest.mark.parametrize(("formula", "accumulators"), [("at 599 - j", "s0"), ("at j", "t0")])
def test_the_verifier_refuses_several_whose_first_is_not_known(
    formula: str, accumulators: str
) -> None:
    graph = body({"x": "f32[4, 600]"}, {"y": f"i64[4]: y[i<4] argmax= x[i, j<600] {formula}"})
    right = body({"x": "f32[4, 600]"}, {"y": "i64[4]: y[i<4] argmax= x[i, j<600] at j"})
    text = show(scheduled(right))
    if accumulators == "s0":
        head = text[: text.index("parallel")]
        text = show(scheduled(graph)).partition("parallel")[0] + text[len(head) :]
    else:
        begin = "  sums s0[64]: f32 of v0\n"
        assert begin in text
        text = text.replace(begin, begin + begin.replace("s0", "t0")).replace(
            "into s0[", "into t0["
        )
        text = text.replace("  v0[r0] from s0", "  merge t0 into s0\n  v0[r0] from s0")
    with pytest.raises(LoopError, match=f"best terms of {accumulators} is not known"):
        verify(parse(text))


def test_rows_that_share_an_element_do_not_go_up() -> None:
    graph = body({"x": "f32[4, 600]"}, {"y": "i64[2]: y[i // 2] argmax= x[i<4, j<600] at j"})
    (formula,) = (node.formula for node in graph.nodes)
    assert formula is not None
    assert not goes_up(formula)
