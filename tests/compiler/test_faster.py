"""Products are ours where they were measured to be as fast: by vectors, and by who made what."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tilewright.capture import capture
from tilewright.compiler import Options, build, faster
from tilewright.tune import Store, this_processor

PRODUCTS = {
    "single": ((300, 400), (400, 500), torch.float32),
    "double": ((300, 400), (400, 500), torch.float64),
    "some rows of a transpose": ((8, 1600), (1600, 1600), torch.float32),
    "few rows of a transpose": ((7, 2000), (2000, 2000), torch.float32),
    "few rows, both of transposes": ((2000, 7), (2000, 2000), torch.float32),
    "few rows": ((7, 3000), (3000, 2000), torch.float32),
    "rows of a double transpose": ((127, 500), (500, 500), torch.float64),
    "more rows of a double transpose": ((128, 500), (500, 500), torch.float64),
    "small, rows of a double transpose": ((16, 300), (300, 300), torch.float64),
    "small, of fewer columns": ((16, 300), (200, 300), torch.float64),
    "single, one block": ((16, 90_000), (90_000, 16), torch.float32),
    "double, one block": ((16, 90_000), (90_000, 16), torch.float64),
}
ALONG = {"some rows of a transpose", "few rows of a transpose"}
SHORT = {"single", *ALONG}
SMALL = {"small, rows of a double transpose", "small, of fewer columns"}
DOUBLE = {"double", "more rows of a double transpose", "small, of fewer columns"}
BOTH = "few rows, both of transposes"
FEW = {"few rows", BOTH}


def _of_transposes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.T @ w.T


@pytest.mark.parametrize(
    ("vector", "theirs", "home", "ours"),
    [
        (64, 32, False, set(PRODUCTS) - {BOTH}),
        (64, 64, True, {*SHORT, *SMALL}),
        (32, 64, True, {*SHORT, *SMALL}),
        (32, 32, True, {*SHORT, *SMALL}),
        (32, 32, False, {*SHORT, *DOUBLE, *FEW}),
        (16, 16, False, SMALL),
    ],
)
def test_products_are_ours_where_the_library_is_no_faster(
    vector: int,
    theirs: int,
    *,
    home: bool,
    ours: set[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    here = replace(this_processor(), vector=vector)
    monkeypatch.setattr(faster, "this_processor", lambda *_: here)
    monkeypatch.setattr(faster, "library_vector", lambda: theirs)
    monkeypatch.setattr(faster, "is_library_at_home", lambda: home)
    found = set()
    for name, (left, right, dtype) in PRODUCTS.items():
        x, w = torch.randn(left, dtype=dtype), torch.randn(right, dtype=dtype)
        function = F.linear if "transpose" in name or "columns" in name else torch.matmul
        function = _of_transposes if name == BOTH else function
        built = build(capture(function, x, w).graph, Options(), Store(here, tmp_path))
        (y,), exact = built.run([x, w]), function(x.double(), w.double())
        torch.testing.assert_close(y.double(), exact, rtol=1e-4, atol=2e-3)
        if "aten.mm.out" not in built.explain():
            found.add(name)
    assert found == ours


@pytest.mark.parametrize(
    ("target", "native", "home", "leads"),
    [
        (32, 32, False, True),
        (32, 64, False, False),  # oneDNN's vectors have 64 bytes then, whoever made the processor
        (64, 64, False, False),
        (32, 32, True, False),
        (16, 16, False, False),
    ],
)
def test_convolutions_are_ours_where_both_have_vectors_of_32_bytes_and_the_library_is_not_at_home(
    target: int, native: int, *, home: bool, leads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = this_processor()
    vectors = {"": native, "x86-64-v3": target}
    monkeypatch.setattr(
        faster, "this_processor", lambda name="": replace(here, vector=vectors[name])
    )
    monkeypatch.setattr(faster, "is_library_at_home", lambda: home)
    assert faster.leads_convolutions("x86-64-v3") == leads


@pytest.mark.parametrize(
    ("squares", "rows", "ours"),
    [(True, 128, True), (True, 32, False), (True, 2048, False), (False, 128, False)],
)
def test_in_bfloat16_products_of_many_rows_are_ours_where_squares_are_multiplied_at_once(
    squares: bool, rows: int, ours: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = replace(this_processor(), vector=64)
    monkeypatch.setattr(faster, "this_processor", lambda *_: here)
    monkeypatch.setattr(faster, "has_squares", lambda *_: squares)
    x, w = torch.randn(rows, 1024).bfloat16(), torch.randn(1024, 1024).bfloat16()
    built = build(capture(torch.matmul, x, w).graph, Options(), Store(here, tmp_path))
    assert ("aten.mm.out" not in built.explain()) == ours
    (y,) = built.run([x, w])
    torch.testing.assert_close(y.double(), x.double() @ w.double(), rtol=2**-7, atol=1e-2)
