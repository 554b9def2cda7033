"""What a phase asks for: each line of the next row and of its own results, and nothing else."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
from tests.kernels.harness import body

from tilewright.base.errors import LoopError
from tilewright.base.expr import Call, Const, Expr, Read, Sym
from tilewright.graph.ir import Graph
from tilewright.kernels.body import canonical
from tilewright.kernels.emit import solved_body
from tilewright.kernels.far import LEAD, LINE, PAGE
from tilewright.kernels.loops import Fetch, Item, Let, Loop, LoopNest, canonical_nest, walk
from tilewright.kernels.loops_check import verify
from tilewright.kernels.loops_text import parse, show
from tilewright.kernels.plan import make_plan
from tilewright.kernels.rows import schedule_region

VALUES = {"add": int.__add__, "sub": int.__sub__, "mul": int.__mul__, "mod": int.__mod__}
VALUES |= {"floordiv": int.__floordiv__, "min": min}
CHOSEN = (3, 0, 6, 6, 1, 8, 2, 0, 5, 4, 7)  # what `a1` holds


def value(expr: Expr, env: Mapping[str, int]) -> int:
    match expr:
        case Const(int(number)):
            return number
        case Sym(name):
            return env[name]
        case Read("a1", (index,)):
            return CHOSEN[value(index, env)]
        case Call(fn, (a, b)):
            return VALUES[fn](value(a, env), value(b, env))
    raise AssertionError(f"{expr} is no index")


def asked(items: Sequence[Item], env: Mapping[str, int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield every element that is asked for, by running the loops."""
    env = dict(env)
    for item in items:
        match item:
            case Loop(name, low, high, inner, _, step):
                for at in range(value(low, env), value(high, env), step):
                    yield from asked(inner, {**env, name: at})
            case Let(name, expr):
                env[name] = value(expr, env)
            case Fetch(element):
                yield element.tensor, tuple(value(entry, env) for entry in element.index)


def softmax(rows: str, loops: str, width: int, dtype: str = "f32") -> Graph:
    """Return the softmax of rows; rows, loops: of how many (`4, 3`), and by what (`i<4, k<3`)."""
    names = ", ".join(loop.split("<")[0] for loop in loops.split(", "))
    full, stats = f"f32[{rows}, {width}]", f"f32[{rows}]"
    return body(
        {"x": f"{dtype}[{rows}, {width}]"},
        {
            "m": f"{stats}: y[{loops}] max= x[{names}, j<{width}]",
            "e": f"{full}: y[{loops}, j<{width}] = exp(x[{names}, j] - m[{names}])",
            "t": f"{stats}: y[{loops}] += e[{names}, j<{width}]",
            "y": f"{full}: y[{loops}, j<{width}] = e[{names}, j] / t[{names}]",
        },
    )


def scheduled(graph: Graph, strides: Mapping[str, tuple[int, ...]] | None = None) -> LoopNest:
    plain = solved_body(canonical(graph, strides or {}))
    plan = make_plan(plain)
    assert not isinstance(plan, str), plan
    (region,) = plan.regions
    return schedule_region(canonical_nest(plain, region), region)


@pytest.mark.parametrize(("dtype", "line"), [("f32", 16), ("bf16", 32), ("f64", 8)])
def test_each_line_of_the_next_row_and_of_the_results_is_asked_for_once(
    dtype: str, line: int
) -> None:
    nest = scheduled(softmax("5", "i<5", 128, dtype))
    found = list(asked(nest.items, {}))
    ahead = -(-LEAD // (128 * (LINE // line + 4)))  # rows that are read and written in a lead
    read = [("a0", (row + ahead, at)) for row in range(5) for at in range(0, 128, line)]
    written = [("v3", (row, at)) for row in range(5) for at in range(0, 128, 16)]
    assert sorted(found) == sorted([*read, *written])
    assert parse(show(nest)) == nest


@pytest.mark.parametrize(("dtype", "line"), [("f32", 16), ("bf16", 32), ("f64", 8)])
@pytest.mark.parametrize("width", [64, 100, 128])
def test_the_phase_after_the_only_sums_asks_for_the_next_row(
    width: int, dtype: str, line: int
) -> None:
    full = f"{dtype}[5, {width}]"
    graph = body(
        {"p": full, "g": full, "w": f"{dtype}[{width}]"},
        {
            "d": f"{dtype}[5]: y[i<5] += p[i, j<{width}] * g[i, j]",
            "x": f"{full}: y[i<5, j<{width}] = (g[i, j] - d[i]) * p[i, j] * w[j]",
        },
    )
    nest = scheduled(graph)
    starts = range(0, width // 32 * 32, line)
    ahead = -(-LEAD // (3 * width * LINE // line))
    read = [
        (tensor, (row + ahead, at)) for tensor in ("a0", "a1") for row in range(5) for at in starts
    ]
    written = [("v1", (row, at)) for row in range(5) for at in starts]
    assert sorted(asked(nest.items, {})) == sorted([*read, *written])
    assert parse(show(nest)) == nest
    verify(nest)


def test_rows_of_several_loops_go_on_in_the_innermost() -> None:
    nest = scheduled(softmax("4, 3", "i<4, k<3", 64))
    found = {
        (i * 3 + k) * 64 + at for tensor, (i, k, at) in asked(nest.items, {}) if tensor == "a0"
    }
    ahead = LEAD // (2 * 4 * 64) * 64
    assert found == {at + ahead for at in range(0, 12 * 64, 16)}


@pytest.mark.parametrize(("width", "ahead"), [(128, 16), (1024, 2), (3000, 1)])
def test_what_takes_long_asks_for_rows_that_follow(width: int, ahead: int) -> None:
    graph = body({"x": f"f32[5, {width}]"}, {"t": f"f32[5]: y[i<5] += exp(x[i, j<{width}])"})
    nest = scheduled(graph)
    starts = range(0, width // 32 * 32, 16)
    expected = [("a0", (row + ahead, at)) for row in range(5) for at in starts]
    assert list(asked(nest.items, {})) == expected


@pytest.mark.parametrize(("width", "cache"), [(1600, 1), (1700, 2), (3200, 2), (3300, None)])
def test_what_counts_is_all_that_is_read_of_a_row(width: int, cache: int | None) -> None:
    full = f"[3, {width}]"
    formulas = {
        "t": f"f32[3]: y[i<3] += x[i, j<{width}] * z[i, j]",
        "y": f"f32{full}: y[i<3, j<{width}] = x[i, j] * z[i, j] / t[i]",
    }
    text = show(scheduled(body({"x": f"f32{full}", "z": f"u8{full}"}, formulas)))
    asked = re.findall(r"fetch (a\d)\[r0\+1, .*?\](?: into cache (\d))?$", text, re.MULTILINE)
    found = {(name, int(one or 1)) for name, one in asked}
    assert found == ({("a0", cache), ("a1", cache)} if cache else set())


def test_a_cache_that_is_none_is_refused() -> None:
    nest = scheduled(softmax("5", "i<5", 128))
    for cache in (0, 3):
        changed = _changed(nest.items, cache)
        with pytest.raises(LoopError, match=f"into cache {cache}"):
            verify(replace(nest, items=changed))


def _changed(items: tuple[Item, ...], cache: int) -> tuple[Item, ...]:
    return tuple(
        replace(item, items=_changed(item.items, cache))
        if isinstance(item, Loop)
        else replace(item, cache=cache)
        if isinstance(item, Fetch)
        else item
        for item in items
    )


@pytest.mark.parametrize("width", [6000, 500_000])
def test_what_takes_long_asks_a_page_ahead_along_long_rows(width: int) -> None:
    graph = body({"x": f"f32[2, {width}]"}, {"t": f"f32[2]: y[i<2] += exp(x[i, j<{width}])"})
    nest = scheduled(graph)
    starts = range(0, width // 32 * 32, 16)
    expected = [("a0", (row, at + PAGE // 4)) for row in range(2) for at in starts]
    assert list(asked(nest.items, {})) == expected


def test_a_phase_on_long_rows_asks_along_its_own_and_for_the_next() -> None:
    nest = scheduled(softmax("2", "i<2", 8192))
    read = [at for tensor, at in asked(nest.items, {}) if tensor == "a0"]
    starts = range(0, 8192, 16)
    along = [(row, at + PAGE // 4) for row in range(2) for at in starts]
    following = [(row + 1, at) for row in range(2) for at in starts]
    assert sorted(read) == sorted([*along, *following])


def quotient(width: int, dtype: str) -> Graph:
    full = f"{dtype}[3, {width}]"
    formulas = {
        "t": f"f32[3]: y[i<3] += x[i, j<{width}]",
        "y": f"{full}: y[i<3, j<{width}] = x[i, j] / t[i]",
    }
    return body({"x": full}, formulas)


@pytest.mark.parametrize(
    ("make", "bytes_", "cache"),
    [
        (softmax, 16 << 10, 1),
        (softmax, (16 << 10) + 128, 2),
        (softmax, 256 << 10, 2),
        (quotient, 8 << 10, 1),
        (quotient, (8 << 10) + 128, 2),
        (quotient, 16 << 10, 2),
        (quotient, (16 << 10) + 128, None),
    ],
)
@pytest.mark.parametrize(("dtype", "size"), [("f32", 4), ("bf16", 2)])
def test_the_next_row_is_asked_for_into_the_cache_where_it_stays(
    make: Callable[..., Graph], bytes_: int, cache: int | None, dtype: str, size: int
) -> None:
    width = bytes_ // size
    of = ("3", "i<3", width, dtype) if make is softmax else (width, dtype)
    nest = scheduled(make(*of))
    text = show(nest)
    asked = re.findall(r"fetch a0\[r0\+1, .*?\](?: into cache (\d))?$", text, re.MULTILINE)
    assert {int(one or 1) for one in asked} == ({cache} if cache else set())
    assert parse(text) == nest
    # What is asked for a page ahead along a row is to be nearest.
    along = re.findall(r"fetch a0\[r0, .*", text)
    assert bool(along) == (make is softmax and bytes_ > 16 << 10)
    assert not any("cache" in one for one in along)


NOTHING = {
    "rows that are too long": (
        body(
            {"x": "f32[2, 100000]"},
            {
                "t": "f32[2]: y[i<2] += x[i, j<100000]",
                "y": "f32[2, 100000]: y[i<2, j<100000] = x[i, j] / t[i]",
            },
        ),
        {},
    ),
    "columns that lie apart": (softmax("5", "i<5", 128), {"x": (1, 5)}),
    "rows that are too short": (
        body(
            {"x": "f32[6, 24]"},
            {"t": "f32[6]: y[i<6] += x[i, j<24]", "y": "f32[6, 24]: y[i<6, j<24] = x[i, j] / t[i]"},
        ),
        {},
    ),
    "one phase that is short": (
        body({"x": "f32[6, 128]"}, {"y": "f32[6]: y[i<6] += x[i, j<128]"}),
        {},
    ),
    "rows that are read again": (
        body(
            {"x": "f32[128]", "z": "f32[6]"},
            {
                "m": "f32[6]: y[i<6] max= x[j<128] + z[i]",
                "t": "f32[6]: y[i<6] += exp(x[j<128] + z[i] - m[i])",
            },
        ),
        {},
    ),
}


@pytest.mark.parametrize("name", list(NOTHING))
def test_no_next_row_is_asked_for_of(name: str) -> None:
    graph, strides = NOTHING[name]
    nest = scheduled(graph, strides)
    assert not [
        item
        for item in walk(nest.items)
        if isinstance(item, Fetch) and item.element.tensor.startswith("a")
    ]


@pytest.mark.parametrize(
    ("dtype", "line", "columns", "ahead"),
    [
        ("f32", 16, 70, 8),
        ("bf16", 32, 70, 8),
        ("f64", 8, 70, 8),
        ("f32", 16, 512, 4),
        ("bf16", 32, 1024, 4),
        ("f64", 8, 512, 2),
    ],
)
def test_each_line_of_a_row_that_a_later_index_names_is_asked_for_once(
    dtype: str, line: int, columns: int, ahead: int
) -> None:
    rows, shape = len(CHOSEN), f"{len(CHOSEN)}, {columns}"
    graph = body(
        {
            "t": f"{dtype}[9, {columns}]",
            "i": f"i64[{rows}]",
            "p": f"{dtype}[{shape}]",
            "s": f"{dtype}[]",
        },
        {"y": f"{dtype}[{shape}]: y[r<{rows}, c<{columns}] = t[i[r], c] * s[] + p[r, c]"},
    )
    nest = scheduled(graph)
    later = (*CHOSEN[ahead:], *CHOSEN[-1:] * ahead)  # the last have none so far behind them
    assert list(asked(nest.items, {})) == [
        ("a0", (row, at)) for row in later for at in range(0, columns // 32 * 32, line)
    ]
    assert parse(show(nest)) == nest
    verify(nest)


@pytest.mark.parametrize(
    ("inputs", "formula"),
    [
        ({"t": "f32[9, 60]"}, "f32[5, 60]: y[r<5, c<60] = t[i[r], c]"),  # short rows
        ({"t": "f32[9, 32768]"}, "f32[5, 32768]: y[r<5, c<32768] = t[i[r], c]"),  # long ones
        ({"t": "f32[64, 9]"}, "f32[5, 64]: y[r<5, c<64] = t[c, i[r]]"),  # not along rows
        ({"t": "f32[9, 64]"}, "f32[5, 64]: y[r<5, c<64] = t[i[r - 1] ?? 0, c]"),  # none before
        ({"t": "f32[9, 64]"}, "f32[4, 64]: y[r<4, c<64] = t[i[0], c]"),  # one row for all
    ],
    ids=["short", "long", "across", "absent", "same"],
)
def test_no_row_ahead_is_asked_for(inputs: dict[str, str], formula: str) -> None:
    nest = scheduled(body({**inputs, "i": "i64[5]"}, {"y": formula}))
    assert not [item for item in walk(nest.items) if isinstance(item, Fetch)]
