"""Values that are absent beside a tensor, read by indices that are themselves read."""

from pathlib import Path

import numpy as np
import pytest
from tests.kernels.harness import assert_close, body, compile_all, run

from tilewright.kernels import emit

INPUTS = {"x": "f32[3]", "ids": "i64[4]"}
PICKED = "f32[4]: y[r<4] = p[ids[r]]"
BODIES = {
    "default": {"e": "f32[3]: y[i<3] = exp(x[i])", "p": "f32[6]: y[i<6] = e[i-1] ?? 0.5"},
    "fill": {"p": "f32[6]: y[i<6] = x[i-1] + 1 else 2.0"},
    "where": {"p": "f32[6]: y[i<6] = x[i-1] * 2 where i > 1 else 3.0"},
    "through": {
        "q": "f32[4]: y[i<4] = x[i-1] ?? 0.5",
        "e": "f32[4]: y[i<4] = sin(q[i])",
        "p": "f32[6]: y[i<6] = e[i-2] ?? 0.25",
    },
}


@pytest.mark.parametrize("name", list(BODIES))
def test_what_is_absent_is_no_error_where_an_index_is_read(name: str, tmp_path: Path) -> None:
    graph = body(INPUTS, {**BODIES[name], "y": PICKED})
    arrays = [np.array([0.5, -1.0, 2.0], np.float32), np.array([5, 0, 2, 1], np.int64)]
    kernel = emit(graph)
    library = compile_all([kernel], tmp_path)
    code, found = run(library, kernel, graph, arrays)
    assert code == 0
    assert_close(graph, arrays, found, ulps=2)


def test_an_index_beside_what_is_padded_is_refused(tmp_path: Path) -> None:
    graph = body(INPUTS, {**BODIES["default"], "y": PICKED})
    kernel = emit(graph)
    library = compile_all([kernel], tmp_path)
    for wrong in (-1, 6):
        ids = np.array([0, 5, wrong, 1], np.int64)
        code, _ = run(library, kernel, graph, [np.ones(3, np.float32), ids])
        assert code == 1
