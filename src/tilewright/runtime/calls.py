"""Calls that the interpreter is not asked about: `calls.c`, compiled for the Python that runs.

The idea: what a call looks at, enters and makes is known once Python has made it; a table of that
is enough for C to make the next one, in an eighth of the time.  C answers what is exactly as in its
table, so Python stays the one definition of what is right; and Python answers all where there is no
`calls.c`: without the headers of Python, and where threads run it without a lock.

This module does not know what a Program is.
"""

import ctypes
import functools
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.base.errors import ToolchainError
from tilewright.runtime.segments import Call, NativeSegment, entry
from tilewright.runtime.toolchain import build, find_toolchain

SOURCE = Path(__file__).with_name("calls.c")

Layout = tuple[np.dtype[Any], tuple[int, ...], tuple[int, ...]]
"""An array's dtype, shape and strides."""
Quick = Callable[[Sequence[Any]], tuple[Any, ...] | None]


class Types(NamedTuple):
    """The types of `calls.c`: what one run at a time uses, the call of a graph, and the call of
    the function that it is of."""

    frame: Callable[..., object]
    quick: Callable[..., Quick]
    front: Callable[..., Callable[..., Any]]


class Wanted(NamedTuple):
    """What an input of a call must be; C reads it in this order.

    same: the very one, which what is kept holds, or None for any.  number: that of its buffer, or
    -1 where the run does not read it.  low, high: the bytes that it covers.  Of arrays: dtype, and
    form: the shape, then the strides.  Of tensors that must be the very ones: address, version.
    """

    same: object
    number: int
    written: bool
    low: int
    high: int
    dtype: np.dtype[Any] | None = None
    form: tuple[int, ...] = ()
    address: int = 0
    version: int = 0


def unsettled(_: Sequence[Any]) -> None:
    """A call that nothing is known of."""


def unquickened(_: Sequence[Any]) -> None:
    """A call of which it is known that Python has to make it."""


def is_made_of(quick: Quick, kept: object | None) -> bool:
    """Say whether a call reads what is kept now (None: nothing is), or is Python's to make."""
    if quick is unsettled or quick is unquickened:
        return quick is unquickened
    made: Callable[[], object] | None = quick.made  # type: ignore[attr-defined]
    return (None if made is None else made()) is kept


def unfronted(*_: Any) -> None:
    """A call of a function of which nothing is known."""


class Front:
    """`call(*arguments)` gives what a function returns where all is as in earlier calls, else None.

    Mutable: it learns from such calls.  A copy has learned nothing, as those are of these objects.
    """

    def __init__(self) -> None:
        self.call: Callable[..., Any] = unfronted
        self._known: tuple[object, object] = None, None

    def __reduce__(self) -> tuple[Any, ...]:
        return Front, ()

    def learn(
        self,
        holds: Callable[[], bool],
        quick: Quick | None,
        sources: Sequence[int],
        state: Sequence[Any],
        arity: int,
        tallies: tuple[NDArray[Any], ...] = (),
    ) -> None:
        """Let C make the next calls of so many arguments.

        holds: says whether the function is what it was.  quick: the call of its graph, where C
        makes that.  sources: of the graph's inputs, the numbers of arguments, or -1 - those of the
        state.  tallies: float32 or int64; each number is one more after a call that C made.
        """
        if quick is None or quick is unsettled or quick is unquickened:
            return
        known_holds, known_quick = self._known
        if known_holds is holds and known_quick is quick:
            return
        self._known, made = (holds, quick), types()
        if made is not None:
            self.call = made.front(holds, quick, tuple(sources), tuple(state), arity, tallies)

    def forget(self) -> None:
        """Let go of what was learned: it no longer holds."""
        self.call, self._known = unfronted, (None, None)


@functools.cache
def types() -> Types | None:
    """Return the types, compiled where no cache has them; None where Python makes all calls."""
    library = extension(SOURCE)
    if library is None or not _reads_arrays(library):
        return None
    made = ctypes.PYFUNCTYPE(ctypes.py_object)(("tilewright_types", library))()
    return Types(*made)


def extension(source: Path) -> ctypes.CDLL | None:
    """Return C that works on Python's objects, compiled for this Python; None where it cannot be:
    without headers or a compiler, or where threads run Python without a lock."""
    include = sysconfig.get_path("include")
    if (
        sys.implementation.name != "cpython"
        or sysconfig.get_config_var("Py_GIL_DISABLED")
        or not (Path(include) / "Python.h").is_file()
    ):
        return None
    folders = dict.fromkeys((include, sysconfig.get_path("platinclude")))
    # Kept apart for each Python: what its headers say goes into what is compiled.
    python = f"-DTILEWRIGHT_PYTHON={sys.hexversion}"
    try:
        found = find_toolchain()
        flags = (*found.flags, python, *(f"-I{folder}" for folder in folders))
        return build(replace(found, flags=flags), {source.name: source.read_text("utf-8")})
    except ToolchainError:
        return None


def frame(
    types: Types,
    call: Call,
    addresses: Sequence[int],
    function: NativeSegment,
    fresh: Sequence[tuple[int, Callable[[], Any]]],
    order: Sequence[int],
    threads: Callable[[], int] | None,
    failure: Callable[[int], Exception],
) -> object | None:
    """Return the frame of a run that is one native function, and fresh outputs; None where that
    function is none of a library's.

    addresses: of all buffers, 0 for those that each call enters.  fresh: numbers and makers of the
    outputs.  order: the results among them.
    """
    begin = entry(function)
    if begin is None:
        return None
    return types.frame(
        begin,
        ctypes.cast(call.team, ctypes.c_void_p).value or 0,
        call.index or 0,
        tuple(addresses),
        tuple(make for _, make in fresh),
        tuple(number for number, _ in fresh),
        tuple(order),
        threads,
        failure,
    )


def covered(layout: Layout) -> tuple[int, int]:
    """Return the bytes that an array covers, counted from its first element."""
    dtype, shape, strides = layout
    reached = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    low = sum(min(end, 0) for end in reached)
    high = sum(max(end, 0) for end in reached) + dtype.itemsize
    return (low, high) if 0 not in shape else (0, 0)


def _reads_arrays(library: ctypes.CDLL) -> bool:
    """Say whether C finds in arrays what NumPy says is there."""
    signature = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_long)
    looked = signature(("tilewright_looked", library))
    plain = np.arange(24.0).reshape(2, 3, 4)
    fixed = plain.astype(np.int8)[::-1, :, 1]
    fixed.flags.writeable = False
    apart = np.frombuffer(bytes(9), np.int32, count=2, offset=1)
    return all(
        looked(value, value.ndim)
        == (
            value.ctypes.data,
            value.ndim,
            id(value.dtype),
            0x100 * value.flags.aligned + 0x400 * value.flags.writeable,
            (*value.shape, *value.strides),
        )
        for value in (plain, fixed, apart, np.array(1.5, np.float16))
    )
