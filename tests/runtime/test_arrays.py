"""Programs without library calls run on NumPy arrays, and torch is not needed for it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tilewright.base.errors import DTypeError, MutationError, ShapeError
from tilewright.program import save
from tilewright.runtime import Executable, load
from tilewright.runtime.arrays import _address, _untouched

from .programs import chain, counter, gather, linear_relu, two_counters

# ---- on arrays ----------------------------------------------------------------------------------


def test_arrays_run_as_tensors_do() -> None:
    executable = Executable(chain(5, 1000, 4))
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    (found,) = executable(x)
    assert isinstance(found, np.ndarray)
    assert np.array_equal(found, executable(torch.from_numpy(x))[0].numpy())
    (strided,) = executable.run_arrays([np.repeat(x, 2)[::2]])
    assert np.array_equal(found, strided)


def _unaligned(x: np.ndarray) -> np.ndarray:
    return np.frombuffer(b"?" + x.tobytes(), np.float32, offset=1, count=x.size).reshape(x.shape)


def _fixed(x: np.ndarray) -> np.ndarray:
    x.flags.writeable = False
    return x


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "as it is": lambda x: x,
    "by columns": np.asfortranarray,
    "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "with gaps": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "unaligned": _unaligned,
    "read only": _fixed,
    "a subclass": lambda x: x.view(np.recarray),
    "named type": lambda x: x.astype(np.dtype("f4").newbyteorder("=")),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_are_read_however_they_lie(layout: str) -> None:
    executable = Executable(gather(5, 6, 4))
    source = np.random.default_rng(1)
    for _ in range(2):
        table = source.normal(size=(5, 6)).astype(np.float32)
        ids = source.integers(5, size=4)
        for given in (table, LAYOUTS[layout](table), table):
            (found,) = executable.run_arrays([given, ids])
            assert np.array_equal(found, table[ids])
            assert type(found) is np.ndarray


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f4", "f2", "?", "i8"])
def test_an_array_is_where_numpy_says(layout: str, dtype: str) -> None:
    source = np.arange(30, dtype=np.float32).reshape(5, 6)
    laid = LAYOUTS[layout](source).astype(dtype, copy=False)
    for value in (laid, laid[1:, 2:], laid[2:, :0], laid[3, 4:5].reshape(())):
        assert _address(value) == value.ctypes.data


def test_results_of_two_runs_on_arrays_are_two_arrays() -> None:
    executable = Executable(chain(5, 1000, 4))
    (one,), (other,) = (executable(np.full(1000, value, np.float32)) for value in (1, 2))
    assert (one == 6).all()
    assert (other == 7).all()


def test_memory_that_there_is_not_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match=str(1 << 60)):
        _untouched(1 << 60)


def test_arrays_are_updated_in_place() -> None:
    executable = Executable(counter())
    state, step = np.zeros(8, np.float32), np.ones(4, np.float32)
    executable(state[::2], step)
    assert state.tolist() == [1, 0, 1, 0, 1, 0, 1, 0]
    with pytest.raises(MutationError, match="share memory"):
        executable(state[:4], state[2:6])
    with pytest.raises(DTypeError, match="float64"):
        executable(np.zeros(4), step)
    with pytest.raises(ShapeError, match="another shape"):
        executable(np.zeros(3, np.float32), step)
    with pytest.raises(ShapeError, match="number of inputs"):
        executable(step)
    fixed = np.zeros(4, np.float32)
    fixed.flags.writeable = False
    with pytest.raises(MutationError, match="is read only"):
        executable(fixed, step)
    assert fixed.tolist() == [0, 0, 0, 0]
    with pytest.raises(DTypeError, match="NumPy arrays for every input"):
        executable(torch.zeros(4), step)


def test_an_update_that_is_written_back_has_its_memory_to_itself() -> None:
    executable = Executable(two_counters())
    memory = np.zeros(8, np.float32)
    step, apart = np.ones(4, np.float32), np.zeros(4, np.float32)
    for one, other in (
        (memory[::2], memory[:4]),
        (memory[:4], memory[::2]),
        (memory[::2], memory[6::-2]),
        (memory[::2], memory[::2]),
    ):
        with pytest.raises(MutationError, match="share memory"):
            executable(one, other, step)
    with pytest.raises(MutationError, match="share memory"):
        executable(memory[::2], apart, memory[:4])
    assert not memory.any()
    assert not apart.any()
    executable(memory[::2], memory[1::2], step)  # side by side: no element is another's
    assert memory.tolist() == [1] * 8


def test_arrays_are_looked_at_in_each_run() -> None:
    executable = Executable(counter())
    memory, step = np.zeros(16, np.float32), np.ones(4, np.float32)
    state, other = memory[:4], memory[8:12]
    for times in (1, 2):
        executable(state, step)
        executable(other, step)
        assert memory.tolist() == [times] * 4 + [0] * 4 + [times] * 4 + [0] * 4
        for _ in range(2):  # a refusal is not forgotten, nor is what was refused remembered
            with pytest.raises(MutationError, match="share memory"):
                executable(state, memory[2:6])
    executable(state, step)
    state.shape = (2, 2)
    with pytest.raises(ShapeError, match="another shape"):
        executable(state, step)
    state.shape = (4,)
    state.dtype = np.int32  # type: ignore[misc]
    with pytest.raises(DTypeError, match="int32"):
        executable(state, step)
    state.dtype = np.float32  # type: ignore[misc]
    state.flags.writeable = False
    with pytest.raises(MutationError, match="is read only"):
        executable(state, step)
    with pytest.raises(DTypeError, match="found     list"):
        executable.run_arrays([other, [1.0] * 4])  # type: ignore[list-item]
    assert memory.tolist() == [3] * 4 + [0] * 4 + [2] * 4 + [0] * 4


def test_an_array_without_elements_is_taken() -> None:
    executable = Executable(gather(5, 6, 0))
    table, ids = np.zeros((5, 6), np.float32), np.zeros(0, np.int64)
    for given in (ids, ids.copy(), np.arange(3)[:0], ids):
        assert executable.run_arrays([table, given])[0].shape == (0, 6)


def test_a_saved_program_runs_on_arrays_without_torch(tmp_path: Path) -> None:
    save(chain(5, 1000, 4), tmp_path / "chain.tw")
    code = (
        "import sys, numpy as np\n"
        "from tilewright.runtime import load\n"
        f"y, = load({str(tmp_path / 'chain.tw')!r})(np.zeros(1000, np.float32))\n"
        "assert (y == 5).all() and 'torch' not in sys.modules\n"
        "import torch\n"
        f"y, = load({str(tmp_path / 'chain.tw')!r})(torch.zeros(1000))\n"
        "assert (y == 5).all()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_loaded_program_gives_the_same_bits(tmp_path: Path) -> None:
    program = linear_relu(5, 6, 7)
    save(program, tmp_path / "p.tw")
    x, w = torch.randn(5, 6), torch.randn(7, 6)
    assert torch.equal(Executable(program).run([x, w])[0], load(tmp_path / "p.tw").run([x, w])[0])
