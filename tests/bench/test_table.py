"""The README's tables and the markers they stand between."""

from pathlib import Path
from typing import Any

import pytest
from bench import table


def _result(median: float, **more: Any) -> dict[str, Any]:
    return {
        "median_ms": median,
        "low_ms": 0.9 * median,
        "high_ms": 1.1 * median,
        "disturbed_blocks": 0,
        "peak_mib": 12.4,
        "cold_seconds": 3.21,
        "fraction_of_limit": 0.5 / median,
        "notes": {"torch": "2.0"},
    } | more


def _results(contenders: dict[str, Any], ratio: dict[str, float] | None = None) -> dict[str, Any]:
    match = {
        "label": "a model",
        "mode": "train",
        "date": "2026-01-02",
        "ceiling_gflops": 200.0,
        "best_peer_over_ours": ratio,
        "contenders": contenders,
    }
    machine = {"cpu": "a CPU", "cores": 2, "vectors": "AVX2", "threads": 2}
    return {"machine": machine, "matches": [match]}


def test_what_stands_between_the_markers_is_replaced_and_nothing_else() -> None:
    text = "before\n<!-- bench:x -->\nold\nrows\n<!-- /bench:x -->\nafter\n"
    replaced = table.replace_between(text, "x", "new\n")
    assert replaced == "before\n<!-- bench:x -->\nnew\n<!-- /bench:x -->\nafter\n"
    assert table.replace_between(replaced, "x", "new") == replaced


@pytest.mark.parametrize(
    "text",
    [
        "no markers",
        "<!-- bench:x -->",
        "<!-- /bench:x --><!-- bench:x -->",
        "<!-- bench:x --><!-- bench:x --><!-- /bench:x -->",
    ],
)
def test_missing_doubled_or_swapped_markers_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="once each and in this order"):
        table.replace_between(text, "x", "new")


def test_torch_compile_stands_for_its_fastest_mode() -> None:
    results = _results(
        {
            "compile-default": _result(3.0),
            "compile-max-autotune": _result(2.0),
            "eager": _result(4.0, cold_seconds=None),
        }
    )
    row = table.render(results).splitlines()[2]
    assert row == "| a model | 4.00 (3.60 to 4.40) | 2.00 (1.80 to 2.20) | - | (25 %) |"


def test_our_ratio_and_fraction_of_the_limit_are_printed() -> None:
    ratio = {"median": 2.0, "low": 1.9, "high": 2.1}
    results = _results({"tilewright": _result(1.0), "eager": _result(2.0)}, ratio)
    row = table.render(results).splitlines()[2]
    assert row.endswith("| 2.00 (1.90 to 2.10) | 50 % |")


def test_a_failed_contender_has_no_number_and_an_empty_column_is_left_out() -> None:
    results = _results({"tilewright": {"error": "absent"}, "eager": _result(2.0)})
    header, _, row = table.render(results).splitlines()[:3]
    assert "Tilewright" not in header
    assert row.startswith("| a model | 2.00 ")


def test_a_disturbed_median_is_marked_and_the_mark_explained() -> None:
    rendered = table.render(_results({"eager": _result(2.0, disturbed_blocks=3)}))
    assert "| ~2.00 (1.80 to 2.20) |" in rendered
    assert rendered.splitlines()[-1].startswith("~ some blocks")


def test_rows_have_as_many_cells_as_their_header() -> None:
    results = _results({"eager": _result(0.012), "jax": _result(123.4), "onnxruntime": _result(1)})
    rows = [line for line in table.render(results).splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows[:3]} == {rows[0].count("|")}
    assert {row.count("|") for row in rows[3:]} == {rows[3].count("|")}


def test_a_readme_keeps_everything_outside_the_markers(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("# Title\n<!-- bench:cpu_models -->\n<!-- /bench:cpu_models -->\nend\n")
    table.write_readme(readme, _results({"eager": _result(2.0)}))
    written = readme.read_text()
    assert written.startswith("# Title\n<!-- bench:cpu_models -->\n| Training step, ms |")
    assert written.endswith("<!-- /bench:cpu_models -->\nend\n")
    assert "2026-01-02" in written
