"""The kernels of a Program in the making: each once, in the order in which they were written.

The idea: a compiler can begin with a kernel long before the Program is whole, so whoever asked is
told of each at once.

This module does not know what is done with a kernel.
"""

from collections.abc import Callable, Iterator

from tilewright.program import KernelSource

Begin = Callable[[KernelSource], None]


class Sources:
    """Kernels by name.  Mutable: owned by one assembly and those of its sub-graphs; it only grows.

    begin: is called with each kernel once, when it is added.
    """

    def __init__(self, begin: Begin | None = None) -> None:
        self._kernels: dict[str, KernelSource] = {}
        self._begin = begin

    def add(self, name: str, text: str) -> None:
        """Add a kernel, unless there is one of that name."""
        if name in self._kernels:
            return
        made = self._kernels[name] = KernelSource(name, text)
        if self._begin is not None:
            self._begin(made)

    def __iter__(self) -> Iterator[KernelSource]:
        return iter(self._kernels.values())
