"""A target chooses the instructions of kernels: results stay, what cannot run is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from bench import cpu_kernels
from tests.kernels.harness import runnable
from tests.sweep import few, swept

import tilewright as tw
from tilewright.base.errors import OptionError
from tilewright.capture import capture
from tilewright.compiler import build, faster
from tilewright.runtime import TARGETS, check_target, find_toolchain, processor
from tilewright.tune import Store, has_squares, this_processor
from tilewright.tune.processor import library_vector_of

Golden = Callable[[str, str], None]
Tensor = torch.Tensor


def test_a_target_is_in_the_flags_the_cache_key_and_the_explanation() -> None:
    target = runnable("x86-64")
    chosen, native = find_toolchain(target), find_toolchain()
    assert "-march=x86-64" in chosen.flags
    assert "-march=native" in native.flags
    assert chosen.key("object", "a") != native.key("object", "a")
    x = torch.randn(9, 7)
    compiled = tw.compile(lambda x: x.exp().sum(-1), x, options=tw.Options(target=target))
    torch.testing.assert_close(compiled(x), x.exp().sum(-1))
    assert " compiled for x86-64 in " in compiled.explain()
    assert " compiled in " in tw.compile(lambda x: x.exp(), x).explain()


def test_targets_that_are_unknown_or_cannot_run_are_refused(golden: Golden) -> None:
    with pytest.raises(OptionError) as unknown:
        tw.Options(target="avx2")
    golden("target_unknown.txt", str(unknown.value))
    told = "flags : fpu cmov cx8 fxsr mmx sse sse2 cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 avx"
    check_target("x86-64-v2", told)
    with pytest.raises(OptionError) as missing:
        check_target("x86-64-v3", told)
    golden("target_that_cannot_run.txt", str(missing.value))


def test_each_level_needs_what_those_below_it_need() -> None:
    told = processor()
    able = []
    for target in TARGETS[1:]:
        try:
            check_target(target, told)
        except OptionError:
            break
        able.append(target)
    assert able == list(TARGETS[1 : 1 + len(able)])
    assert ("x86-64-v4" in able) == ("avx512vl" in told)


@pytest.mark.parametrize(
    ("rows", "columns", "along", "ours"),
    [
        (2, 1024, True, True),
        (8, 1016, True, True),
        (32, 4096, True, True),
        (200, 1024, True, True),
        (7, 1024, False, False),
        (8, 1016, False, False),
        (8, 1024, False, True),
    ],
)
def test_rows_times_a_large_transposed_matrix_are_ours_where_that_was_measured(
    rows: int,
    columns: int,
    *,
    along: bool,
    ours: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A few rows whose terms lie together read the matrix along them; for others it is packed."""
    monkeypatch.setattr(faster, "is_library_at_home", lambda: True)
    x, w = torch.randn((rows, 1024) if along else (1024, rows)), torch.randn(columns, 1024)

    def f(x: Tensor, w: Tensor) -> Tensor:
        return (x if along else x.T) @ w.T

    for target, measured in (("x86-64-v3", True), ("x86-64", False)):
        options = tw.Options(target=runnable(target))
        store = Store(this_processor(options.target), tmp_path)
        graph = capture(f, x, w).graph
        built = build(graph, options, store)
        assert ("aten.mm.out" not in built.explain()) == (ours and measured)
        (found,) = built.run([{"x": x, "w": w}[value.name] for value in graph.inputs])
        torch.testing.assert_close(found.double(), f(x.double(), w.double()), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("batch", "side", "terms"), [((), 1024, 64), ((40,), 64, 128), ((), 16, 100_000)]
)
@pytest.mark.parametrize("home", [True, False])
def test_large_products_in_float32_are_ours_where_threads_have_blocks(
    batch: tuple[int, ...],
    side: int,
    terms: int,
    *,
    home: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """And in float64 where the library was written for others."""
    monkeypatch.setattr(faster, "is_library_at_home", lambda: home)
    a, b = torch.randn(*batch, side, terms), torch.randn(*batch, terms, side)
    options = tw.Options(target=runnable("x86-64-v3"))
    for dtype in (torch.float32, torch.float64):
        x, y = a.to(dtype), b.to(dtype)
        graph = capture(torch.matmul, x, y).graph
        built = build(graph, options, Store(this_processor(options.target), tmp_path))
        measured = dtype == torch.float32 or not home
        assert ("aten." not in built.explain()) == (measured and side > 16)
        (found,) = built.run([x, y])
        torch.testing.assert_close(found.double(), a.double() @ b.double(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("target", "depth"), [("x86-64-v3", 256), ("x86-64-v4", 512)])
@pytest.mark.parametrize("follows", [False, True])
def test_products_sum_as_many_terms_at_a_time_as_pays_with_the_target_s_vectors(
    target: str, depth: int, *, follows: bool
) -> None:
    a, b = torch.randn(70, 1100), torch.randn(1100, 90)

    def f(a: Tensor, b: Tensor) -> Tensor:
        return (a @ b).relu() if follows else a @ b

    options = tw.Options(tuned=False, library=False, target=runnable(target))
    built = build(capture(f, a, b).graph, options)
    text = "".join(kernel.text for kernel in built.program.kernels)
    assert text.count(f"1.0, {depth}, 64, 16,\n") == 1
    torch.testing.assert_close(
        built.run([a, b])[0].double(), f(a.double(), b.double()), rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize(("target", "ours"), [("x86-64-v3", True), ("x86-64-v4", False)])
def test_large_products_of_halves_are_ours_where_the_target_has_short_vectors(
    target: str, *, ours: bool
) -> None:
    """Whatever this processor has."""
    a, b = torch.randn(300, 400).bfloat16(), torch.randn(400, 500).bfloat16()
    built = build(capture(torch.matmul, a, b).graph, tw.Options(target=runnable(target)))
    assert ("aten.mm.out" not in built.explain()) == ours
    exact = a.double() @ b.double()
    torch.testing.assert_close(built.run([a, b])[0].double(), exact, rtol=1e-2, atol=1e-1)


def test_mkl_takes_vectors_of_64_bytes_on_intels_processors_alone() -> None:
    wide, short = "flags : avx avx2 avx512f", "flags : avx avx2"
    assert library_vector_of(f"vendor_id : GenuineIntel\n{wide}") == 64
    assert library_vector_of(f"vendor_id : GenuineIntel\n{short}") == 32
    assert library_vector_of(f"vendor_id : AuthenticAMD\n{wide}") == 32
    assert library_vector_of(f"vendor_id : AuthenticAMD\n{short}") == 32
    assert library_vector_of("vendor_id : AuthenticAMD\nflags : sse2") == 16


def test_squares_are_multiplied_by_native_kernels_of_a_processor_that_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = "tilewright.tune.processor.processor"
    monkeypatch.setattr(told, lambda: "flags : avx512f amx_tile amx_bf16")
    assert has_squares()
    assert not has_squares("x86-64-v4")
    monkeypatch.setattr(told, lambda: "flags : avx512f amx_tile amx_int8")
    assert not has_squares()


LISTED = {f"{k.group} {k.name}": k for k in cpu_kernels.kernels(4096) if k.flops < 300_000_000}
CHOSEN = (
    "product 32 x 32 x 32 NN",
    "rows softmax",
    "rows, with gradient layer norm",
    "short rows softmax of lengths, 2000 x 31",
)


@pytest.mark.parametrize("target", ["x86-64-v3", swept("x86-64")])
@pytest.mark.parametrize("name", few(LISTED, *CHOSEN))
def test_the_benchmarks_kernels_agree_with_torch_on_any_target(name: str, target: str) -> None:
    cpu_kernels.contenders(LISTED[name], runnable(target))
