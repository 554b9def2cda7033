"""Say in our words why Dynamo, or torch itself, could not follow a function; name the user's line.

The idea: what torch says of a call that cannot be is the best account of what it expects; Dynamo's
account of itself is not: of that only the reason and the hint are kept.
This module reads texts; it does not know graphs.
"""

import re

import torch._dynamo.exc

from tilewright.base.errors import (
    UNKNOWN,
    CaptureError,
    DataDependentShapeError,
    DTypeError,
    IndexRangeError,
    MutationError,
    Origin,
    ShapeError,
    TilewrightError,
)
from tilewright.capture.control_refusal import default_dtype, explain_control
from tilewright.capture.origin import dotted, origin_of_frames

_DATA_WORDS = ("data-dependent", "data dependent", "dynamic shape operator", ".item()", "nonzero")
_CALL = re.compile(
    r"call_(?:function|method) <?(?:(?:built-in )?(?:function|method) )?(?P<name>[\w.]+)"
)
_GOT = re.compile(r"got (?P<kind>\w+)\((?P<quote>['\"])(?P<said>.*?)(?P=quote)\)$", re.MULTILINE)
_FAKE = re.compile(r"FakeTensor\(\.\.\., size=\(([^)]*)\)(?:, dtype=torch\.(\w+))?")
_PACKS = re.compile(r"function `(?:pack|pad_packed|pack_padded)_sequence`")
_RAISED = re.compile(r"raised exception (.*)")
_CONSTANT = re.compile(r"""ConstantVariable\(\w+: ('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^()]*)\)""")
_LEVEL = re.compile(r"Expected FakeTensor, got <class 'torch\.Tensor'>")
_PART = re.compile(r"^\s*(Explanation|Hint|Developer debug context): ?(.*)$", re.MULTILINE)
# Hints that do not help the user of this package.
_IDLE = ("Please report", "It may be possible", "This is likely", "Your code may result")


def explain(reason: Exception) -> TilewrightError | None:
    """Turn a refusal into ours; None for an exception that is not about what is captured."""
    text = str(reason)
    if not isinstance(reason, torch._dynamo.exc.TorchDynamoException):
        return _not_dynamos(reason, text)
    account = text.split("from user code:", 1)[0]
    where = _where(reason)
    known = explain_control(account, where) or _packed(account, where)
    if known is not None:
        return known
    if "failed to run FX node" in account:
        return _impossible_call(account, where)
    if "`torch.autograd.grad`" in account:
        return derivative_inside("torch.autograd.grad", where)
    raised = _RAISED.search(account)
    if raised:
        return CaptureError(
            "the function raises an exception while it is captured",
            expected="a function that returns for arguments of these shapes and types",
            found=_exception(raised[1]),
            where=where,
            mend="call it uncompiled with the same arguments to see why it raises",
        )
    if "assert" in account and "ConstantVariable(bool: False)" in account:
        return CaptureError(
            "an assert of the function does not hold for the example arguments",
            expected="arguments for which it holds",
            found=f"{where.code or 'an assert'}: False",
            where=where,
            mend="pass other example arguments, or take the assert out",
        )
    if any(word in account.lower() for word in _DATA_WORDS):
        return DataDependentShapeError(
            "a shape or a branch depends on the values in a tensor",
            expected="sizes and control flow that follow from the sizes of the inputs",
            found=_parts(account)["first"],
            where=where,
            mend="compute it outside and pass it in as a number, or use torch.where",
        )
    if "side effects happened" in account.lower():
        return CaptureError(
            "the function changes Python objects that outlive it",
            expected="results that are returned, and buffers that are changed in place",
            found=f"changes of {_changed(account)}",
            mend="return the value in place of storing it in an attribute, list or dict",
        )
    return _untraceable(account, where)


def _exception(text: str) -> str:
    """Show an exception; torch 2.11 shows its arguments as it holds them itself."""
    shown, held = _CONSTANT.subn(r"\1", text)
    return re.sub(r"\(\[(.*)\]\)$", r"(\1)", shown) if held else text


def _not_dynamos(reason: Exception, text: str) -> TilewrightError | None:
    """Explain an exception that has come through Dynamo as it was raised."""
    if isinstance(reason, IndexError) and "from user code:" in text:
        return IndexRangeError(
            "an index is out of range", found=text.splitlines()[0], where=_where(reason)
        )
    if isinstance(reason, AssertionError) and _LEVEL.match(text):
        return CaptureError(
            "control flow is differentiated inside of what is captured",
            expected="derivatives of control flow that are taken from outside",
            found="a transform such as grad or jvp around it, in the captured function",
            where=_where(reason),
            mend="call tw.grad(f) as it is, for it is compiled then, and hand transforms to"
            " each other with no function between them: tw.jvp(tw.grad(f), ...)",
        )
    return None


def not_applicable(name: str, said: str, found: str, where: Origin) -> TilewrightError:
    """The error for a call of `name` that torch refuses with the words `said`."""
    said = re.sub(r"^[Ee]xpected:? ", "", said).rstrip(".")
    if "a leaf Variable that requires grad" in said:
        return MutationError(
            f"{name} changes a leaf tensor that requires gradients in place",
            expected="in-place changes of computed tensors, or of tensors without gradients",
            found=found,
            where=where,
            mend="compute a fresh tensor (x = x + 1), or change a copy: x.clone()",
        )
    kind = blame(said)
    mends = {
        ShapeError: "make the sizes fit, at this line or where its operands are made",
        DTypeError: "convert an operand at this line with .to(dtype)",
    }
    what = {ShapeError: "shapes", DTypeError: "element types"}.get(kind)
    return kind(
        f"{name} cannot be applied to operands of these {what}"
        if what
        else f"{name} cannot be applied to these operands",
        expected=said,
        found=found,
        where=where,
        mend=mends.get(kind, "call it with arguments that it takes"),
    )


def derivative_inside(name: str, where: Origin) -> CaptureError:
    """The error for a function that takes a derivative itself, by a call of `name`."""
    return CaptureError(
        "a derivative is taken inside the captured function",
        expected="a function of tensors, to be differentiated from outside",
        found=f"a call of {name}",
        where=where,
        mend="take the derivative outside of what is compiled",
    )


def _packed(account: str, where: Origin) -> CaptureError | None:
    if not _PACKS.search(account):
        return None
    return CaptureError(
        "sequences are packed inside of what is captured",
        expected="padded sequences, whose size does not depend on their lengths",
        found="a PackedSequence, which has one row for each element that is no padding",
        where=where,
        mend="compute on padded sequences and mask the results: torch.arange(T) < lengths[:, None];"
        ' or use torch.compile(backend="tilewright"), which leaves such lines to Python',
    )


def blame(text: str) -> type[TilewrightError]:
    """Choose the class of an error by the words torch has for it."""
    if re.search(r"dtype|scalar type|same type|not implemented for '|tensors used as", text, re.I):
        return DTypeError
    words = r"\b(sizes?|shapes?|dims?|dimensions?|mat1|broadcast\w*|length|numel|\dD|batch_size)\b"
    return ShapeError if re.search(words, text, re.IGNORECASE) else CaptureError


def _impossible_call(account: str, where: Origin) -> TilewrightError:
    call, got = _CALL.search(account), _GOT.search(account)
    name = call["name"].rsplit(".", 1)[-1] if call else "a call"
    said = got["said"].split("\\n", 1)[0] if got else account.splitlines()[0]
    operands = ", ".join(
        f"{dtype or default_dtype()}[{sizes.rstrip(',')}]"
        for sizes, dtype in _FAKE.findall(account.split("got ", 1)[0])
    )
    return not_applicable(name, said, operands, where)


def _untraceable(account: str, where: Origin) -> CaptureError:
    parts = _parts(account)
    explanation = parts.get("Explanation", "")
    reason = explanation.split("Reason: ", 1)[-1] or parts["first"]
    return CaptureError(
        "the function cannot be captured as a whole",
        expected="code that torch.compile(fullgraph=True) can trace",
        found=reason,
        where=where,
        mend=parts.get("Hint")
        or 'move it out of what is compiled, or use torch.compile(backend="tilewright"), which '
        "leaves such lines to Python",
    )


def _parts(account: str) -> dict[str, str]:
    """Return the first line of Dynamo's account, its explanation and the first hint of use."""
    found = {"first": account.strip().split("\n", 1)[0].strip()}
    for label, text in _PART.findall(account):
        if label != "Hint" or not text.startswith(_IDLE):
            found.setdefault(label, text.strip().rstrip("."))
    return found


def _changed(text: str) -> str:
    """Name what Dynamo lists as changed; the closure of our entry holds the function itself."""
    sources = re.findall(r'"([^"]+)"', text.split("double check: ")[-1])
    return ", ".join("self" if s == "L['fn']" else dotted(s) for s in sources) or "Python objects"


def _where(reason: BaseException) -> Origin:
    frames = getattr(reason, "real_stack", None)
    return origin_of_frames(frames) if frames else UNKNOWN
