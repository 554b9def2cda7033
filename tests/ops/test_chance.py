"""Dropout: its mask is decided by the seed, the stream and an element's own number."""

import numpy as np
import pytest

from tilewright.base.dtypes import F32, I64
from tilewright.graph.build import Builder
from tilewright.graph.evaluate import evaluate
from tilewright.graph.ir import TensorType
from tilewright.ops import emit

Array = np.ndarray


def dropped(x: Array, seed: int, p: float, stream: int = 0) -> Array:
    builder = Builder()
    a = builder.input("x", TensorType(x.shape, F32))
    b = builder.input("seed", TensorType((), I64))
    y = emit(builder, "dropout", a, b, p=p, stream=stream)
    assert not isinstance(y, tuple), "one result"
    return evaluate(builder.finish((y,)), [x.astype(np.float32), np.array(seed)])[0]


def test_the_share_kept_and_the_mean_are_those_asked_for() -> None:
    y = dropped(np.ones((200, 100)), 5, 0.3)
    kept = float((y != 0).mean())
    # Four deviations of a binomial share of 20,000 draws.
    assert abs(kept - 0.7) < 4 * (0.3 * 0.7 / 20_000) ** 0.5
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.7)}


def test_the_mask_depends_on_seed_and_stream_alone() -> None:
    ones = np.ones((8, 9))
    first = dropped(ones, 1, 0.5)
    assert (first == dropped(ones, 1, 0.5)).all()
    assert (first != dropped(ones, 2, 0.5)).any()
    assert (first != dropped(ones, 1, 0.5, stream=1)).any()
    # The element's number is its row-major position, whatever the shape.
    assert (first.ravel() == dropped(np.ones(72), 1, 0.5)).all()


@pytest.mark.parametrize(("p", "wanted"), [(0.0, 2.0), (1.0, 0.0)])
def test_the_ends_keep_all_and_nothing(p: float, wanted: float) -> None:
    assert (dropped(np.full((4, 4), 2.0), 3, p) == wanted).all()


def test_what_is_dropped_keeps_nan_as_in_torch() -> None:
    y = dropped(np.full(64, np.nan), 3, 0.5)
    assert np.isnan(y).all()
