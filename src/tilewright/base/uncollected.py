"""Work among many small values without Python's collector, which looks for circles among them.

The idea: whole compilations make hundreds of thousands of values that stay until the end, among
which there are few circles; looking, again and again, takes a tenth of the time and more.

This module does not know what is made meanwhile.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Look for no circles among objects meanwhile, in no thread; also a decorator.

    The collector is left as it was found, whatever is raised.  Among threads that do so at once,
    whoever came first turns it on again.
    """
    looks = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looks:
            gc.enable()
