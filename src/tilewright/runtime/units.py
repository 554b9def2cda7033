"""Kernels as texts for a C compiler: small ones share a text.

The idea: to start a compiler costs as much as a small kernel or two, so a text takes kernels until
it is long enough to be worth a start.  What a kernel defines for itself is named after its place in
the text: each is compiled as if it stood alone, while of functions that several call a compiler
puts fewer in their place; what it asks of the compiler ends with it.  Types and declarations that
are the same stand once.  Which kernels share a text follows from their order alone, so that a cache
knows it again.

This module does not know what a kernel computes.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tilewright.program import KernelSource

ENOUGH = 6000
"""Characters of a text that takes no more kernels: a compiler takes some 150 ms, 25 to start."""

Unit = tuple[str, str]
"""What a text is called while it is compiled, and the text."""

_MACROS = re.compile(r"^\s*#\s*(?:define|undef|include)\b", re.MULTILINE)
_PRAGMA = re.compile(r"^\s*#\s*pragma\b.*$", re.MULTILINE)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_ATTRIBUTE = re.compile(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)")
_BRACES = re.compile(r"\{[^{}]*\}")
_NAME = re.compile(r"(\w+)\W*$")
_BEGIN, _END = "#pragma GCC push_options", "#pragma GCC pop_options"


@dataclass(frozen=True, slots=True)
class _Parts:
    """A kernel's text, taken apart at file scope.

    shared: types and declarations by name.  own: the rest.  local: what it defines for itself.
    """

    name: str
    shared: dict[str, str]
    own: str
    local: tuple[str, ...]


class Units:
    """Texts in the making.  Mutable: owned by who adds the kernels, in their order."""

    def __init__(self) -> None:
        self._waiting: list[tuple[KernelSource, _Parts]] = []

    def add(self, kernel: KernelSource) -> Iterator[Unit]:
        """Take a kernel; yield the texts that are whole by now."""
        parts = _parts(kernel) if len(kernel.text) <= ENOUGH else None
        if parts is None:
            yield _alone(kernel)
            return
        shared = self._shared()
        if any(shared.get(name, text) != text for name, text in parts.shared.items()):
            yield from self.rest()
        self._waiting.append((kernel, parts))
        if sum(len(kernel.text) for kernel, _ in self._waiting) > ENOUGH:
            yield from self.rest()

    def rest(self) -> Iterator[Unit]:
        """Yield the text that has begun, if one has."""
        waiting, self._waiting = self._waiting, []
        if len(waiting) == 1:
            yield _alone(waiting[0][0])
        elif waiting:
            yield _joined([parts for _, parts in waiting])

    def _shared(self) -> dict[str, str]:
        return {name: text for _, parts in self._waiting for name, text in parts.shared.items()}


def units(kernels: Sequence[KernelSource]) -> dict[str, str]:
    """Return the texts of kernels, by what they are called."""
    made = Units()
    return dict([*(unit for kernel in kernels for unit in made.add(kernel)), *made.rest()])


def _alone(kernel: KernelSource) -> Unit:
    return f"kernel {kernel.name}", kernel.text


def _joined(kernels: Sequence[_Parts]) -> Unit:
    told: set[str] = set()
    lines: list[str] = []
    for number, kernel in enumerate(kernels):
        lines += [text for name, text in kernel.shared.items() if name not in told]
        told |= kernel.shared.keys()
        lines += [f"#define {name} {name}_of_{number}" for name in kernel.local]
        asks = _PRAGMA.search(kernel.own) is not None
        own = (_BEGIN, kernel.own, _END) if asks else (kernel.own,)
        lines += [*own, *(f"#undef {name}" for name in kernel.local)]
    return f"kernels {', '.join(kernel.name for kernel in kernels)}", "\n".join(lines)


@lru_cache(256)  # asked where compiling begins and where it ends
def _parts(kernel: KernelSource) -> _Parts | None:
    """Take a kernel's text apart; None where it has macros, or something is not understood.

    What is asked of the compiler before what stands once would not end with the kernel.
    """
    if _MACROS.search(kernel.text):
        return None
    shared: dict[str, str] = {}
    own: list[str] = []
    local: list[str] = []
    for text in _definitions(kernel.text):
        name = _defined(text)
        if name is None:
            return None
        first = _plain(text).split()[0]
        if first in ("typedef", "extern"):
            if _PRAGMA.search(text) or shared.setdefault(name, text) != text:
                return None
            continue
        own.append(text)
        if first == "static" and name not in local:
            local.append(name)
    return _Parts(kernel.name, shared, "\n".join(own), tuple(local))


def _definitions(text: str) -> Iterator[str]:
    """Yield what stands at file scope, each with the comments before it."""
    lines: list[str] = []
    depth, last, comment = 0, "", ""
    for line in text.split("\n"):
        lines.append(line)
        code, begun, rest = _COMMENT.sub(" ", comment + line).partition("/*")
        comment = begun + rest + "\n" if begun else ""
        depth += code.count("{") - code.count("}")
        last = code.rstrip()[-1:] or last
        if not comment and depth == 0 and last in (";", "}"):
            yield "\n".join(lines)
            lines, last = [], ""
    if "\n".join(lines).strip():
        yield "\n".join(lines)


def _defined(text: str) -> str | None:
    """Return the name that is defined or declared at file scope; None where that is not clear."""
    code = _plain(text)
    while (plain := _BRACES.sub(" ", code)) != code:
        code = plain
    if "{" in code or "}" in code or "/*" in code:
        return None
    found = _NAME.search(re.split(r"[(\[=;]", code)[0])
    return None if found is None else found[1]


def _plain(text: str) -> str:
    """Return what is defined or declared, without comments, attributes and pragmas."""
    return _ATTRIBUTE.sub(" ", _PRAGMA.sub(" ", _COMMENT.sub(" ", text)))
