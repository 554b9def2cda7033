"""The README's tables from a results file, and the writer that puts them between their markers.

The idea: a number in the README is never typed; `<!-- bench:NAME -->` and `<!-- /bench:NAME -->`
enclose what this module prints.  Does not measure.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

NAME = "cpu_models"
OURS = "tilewright"
"""The contender that the peers are compared with; the names of its variants begin with it."""

# Column title -> the contenders that may stand in it; the fastest does.
COLUMNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Tilewright", (OURS,)),
    ("its own kernels alone", ("tilewright-own",)),
    ("saved, on arrays", ("tilewright-saved",)),
    ("PyTorch eager", ("eager",)),
    (
        "torch.compile",
        ("compile-default", "compile-max-autotune", "compile-freezing"),
    ),
    ("jax.jit", ("jax",)),
    ("ONNX Runtime", ("onnxruntime",)),
)
_TITLES = {"train": "Training step, ms", "infer": "Inference, ms"}
_NONE = "-"


def replace_between(text: str, name: str, body: str) -> str:
    """`text` with what stands between the markers of `name` replaced by `body`."""
    begin, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"the text needs {begin} and {end}, once each and in this order")
    head, rest = text.split(begin)
    tail = rest.split(end)[1]
    return f"{head}{begin}\n{body.strip()}\n{end}{tail}"


def write_readme(path: Path, results: Mapping[str, Any]) -> None:
    """Put the tables of `results` into the README at `path`."""
    path.write_text(replace_between(path.read_text(), NAME, render(results)))


def render(results: Mapping[str, Any]) -> str:
    """Time of training and inference, memory, and compile time, with what they must be read by."""
    parts = []
    for mode in ("train", "infer"):
        matches = [match for match in results["matches"] if match["mode"] == mode]
        if matches:
            parts.append(_times(mode, matches))
            parts.append(_costs(mode, matches))
    return "\n\n".join([*parts, _footnote(results)])


def _times(mode: str, matches: Sequence[Mapping[str, Any]]) -> str:
    columns = _present(matches)
    titles = [_TITLES[mode], *(title for title, _ in columns)]
    rows = []
    for match in matches:
        cells = [_time(_best(match, names)) for _, names in columns]
        rows.append([match["label"], *cells, _against_best(match), _limit(match)])
    return _markdown([*titles, "best peer / ours", "of the limit"], rows)


def _costs(mode: str, matches: Sequence[Mapping[str, Any]]) -> str:
    columns = _present(matches)
    heading = f"{'Training' if mode == 'train' else 'Inference'}: peak memory, MiB; cold compile, s"
    rows = []
    for match in matches:
        cells = [_cost(_best(match, names)) for _, names in columns]
        rows.append([match["label"], *cells])
    return _markdown([heading, *(title for title, _ in columns)], rows)


def _present(matches: Sequence[Mapping[str, Any]]) -> list[tuple[str, tuple[str, ...]]]:
    """The columns that any match fills."""
    return [
        (title, names)
        for title, names in COLUMNS
        if any(_best(match, names) is not None for match in matches)
    ]


def _best(match: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any] | None:
    """The fastest valid result among `names`."""
    known = [match["contenders"][name] for name in names if name in match["contenders"]]
    valid = [result for result in known if not result.get("error")]
    return min(valid, key=lambda result: float(result["median_ms"]), default=None)


def _time(result: Mapping[str, Any] | None) -> str:
    if result is None:
        return _NONE
    mark = "~" if result["disturbed_blocks"] else ""
    span = f"{_digits(result['low_ms'])} to {_digits(result['high_ms'])}"
    return f"{mark}{_digits(result['median_ms'])} ({span})"


def _cost(result: Mapping[str, Any] | None) -> str:
    if result is None:
        return _NONE
    cold = result["cold_seconds"]
    return f"{result['peak_mib']:.0f}; {_NONE if cold is None else format(cold, '.1f')}"


def _against_best(match: Mapping[str, Any]) -> str:
    ratio = match.get("best_peer_over_ours")
    if ratio is None:
        return _NONE
    return f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"


def _limit(match: Mapping[str, Any]) -> str:
    """Our fraction of the FLOP limit; where we are absent, the best peer's in brackets."""
    ours = _best(match, (OURS,))
    if ours is not None:
        return f"{100 * ours['fraction_of_limit']:.0f} %"
    others = (name for _, names in COLUMNS for name in names if not name.startswith(OURS))
    peer = _best(match, tuple(others))
    return _NONE if peer is None else f"({100 * peer['fraction_of_limit']:.0f} %)"


def _footnote(results: Mapping[str, Any]) -> str:
    machine = results["machine"]
    matches = results["matches"]
    dates = sorted({match["date"] for match in matches})
    versions: dict[str, str] = {}
    for match in matches:
        for result in match["contenders"].values():
            versions |= result.get("notes", {})
    rates = sorted(match["ceiling_gflops"] for match in matches)
    disturbed = any(
        result.get("disturbed_blocks")
        for match in matches
        for result in match["contenders"].values()
    )
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['vectors']}; {', '.join(dates)}; "
        + ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
        + f"; float32, {machine['threads']} threads.",
        "Median (95 % interval) of alternating blocks. The limit is the FLOPs of the model's "
        "products and convolutions at the rate of fused multiply-adds in registers "
        f"({rates[0]:.0f} to {rates[-1]:.0f} GFLOP/s, measured in the same run; Winograd's "
        "convolutions need fewer). torch.compile is the best of default, max-autotune and "
        "freezing. Own kernels alone: `Options(library=False)`. Saved: what `tw.load` gives, on "
        "NumPy arrays in a process without torch, as ONNX Runtime. In brackets: of the best peer, "
        "where ours is absent.",
        "Made by `python -m bench.cpu_models`; samples in `bench/results/cpu_models.json`.",
    ]
    if disturbed:
        lines.append("~ some blocks ran while something else used the machine.")
    return "\n".join(lines)


def _digits(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)
