"""From what Dynamo knows of a node or a placeholder to what the user calls it.

The idea: the innermost frame that is not torch's own is the user's line (a library of models is
user code), and the chain of attributes in a placeholder's source is the parameter's name.
This module does not know graphs; it reads texts.
"""

import re
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from tilewright.base.errors import UNKNOWN, Origin

_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parent.parent)
_MODELS = str(Path(_OURS) / "models")
_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')
_ATTRIBUTE = re.compile(r"\.(\w+)|\['?([^'\]]+)'?\]")
_CONTAINERS = frozenset({"__dict__", "_modules", "_parameters", "_buffers"})


def is_user_code(file: str) -> bool:
    """Tell whether a file is the user's (or a library's) and neither torch's nor ours."""
    if file.startswith(_MODELS):  # models of ours are plain torch, written as a user writes
        return True
    return not file.startswith((_TORCH, _OURS, "<frozen")) and not file.startswith("<eval_with_key")


def origin_of_text(stack_trace: str | None, module: str = "") -> Origin:
    """Return the innermost user frame of a printed stack trace."""
    lines = (stack_trace or "").splitlines()
    for position in reversed(range(len(lines))):
        frame = _FRAME.match(lines[position])
        if frame and is_user_code(frame["file"]):
            following = lines[position + 1] if position + 1 < len(lines) else ""
            code = "" if _FRAME.match(following) else following.strip()
            return Origin(frame["file"], int(frame["line"]), code, module)
    return Origin(module=module) if module else UNKNOWN


def origin_of_frames(frames: Iterable[traceback.FrameSummary], module: str = "") -> Origin:
    """Return the innermost user frame of a stack, outermost first."""
    for frame in reversed(list(frames)):
        if is_user_code(frame.filename):
            return Origin(frame.filename, frame.lineno or 0, (frame.line or "").strip(), module)
    return Origin(module=module) if module else UNKNOWN


def origin_of_meta(meta: Mapping[str, object]) -> Origin:
    """Return the origin of an FX node from its `stack_trace` and `nn_module_stack`."""
    stack = meta.get("stack_trace")
    return origin_of_text(stack if isinstance(stack, str) else None, module_of_meta(meta))


def module_of_meta(meta: Mapping[str, object]) -> str:
    """Return the dotted path of the innermost module a node was traced in, the root being ""."""
    modules = meta.get("nn_module_stack")
    if not isinstance(modules, Mapping) or not modules:
        return ""
    entry = list(modules.values())[-1]
    if not isinstance(entry, tuple) or not isinstance(entry[0], str):
        return ""
    return ".".join(_path(_split_root(entry[0])[1]))


def dotted(source: str) -> str:
    """Turn a Dynamo source into the user's dotted path.

    before:  L['self']._modules['layers']._modules['0']._parameters['weight']
    after:   layers.0.weight
    """
    root, rest = _split_root(source)
    return ".".join(_path(rest)) or root


def _path(rest: str) -> list[str]:
    parts = [first or second for first, second in _ATTRIBUTE.findall(rest)]
    return [part for part in parts if part not in _CONTAINERS]


def _split_root(source: str) -> tuple[str, str]:
    """Split off the local (`L['x']`), global (`G['x']`) or plain name that a source starts with."""
    match = re.match(r"[LG]\['([^']+)'\](.*)$", source, re.DOTALL)
    if match is None:
        match = re.match(r"(\w*)(.*)$", source, re.DOTALL)
        assert match is not None, "a pattern that matches the empty string always matches"
    return match[1], match[2]


def identifier(text: str) -> str:
    """Turn a dotted path into a value's name: letters, digits and underscores, no digit first."""
    name = re.sub(r"\W+", "_", text).strip("_")
    return f"_{name}" if not name or name[0].isdigit() else name
