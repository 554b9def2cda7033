"""Say in our words what torch refuses of control flow: branches and carries that do not fit.

The idea: torch compares what bodies give, and names places by numbers and its own variables; of its
account the two types are kept, the one that was to be and the one that is.
This module reads texts; it does not know graphs.
"""

import re

import torch

from tilewright.base.errors import (
    CaptureError,
    DTypeError,
    MutationError,
    Origin,
    ShapeError,
    TilewrightError,
)

_KIND = re.compile(r"Higher Order Operator: [\w.]*?(\w+)$", re.MULTILINE)
_WORDS = {"while_loop": "while", "map_impl": "map"}
_COMPARED = re.compile(
    r"Expected (?P<lhs>\w+) and (?P<rhs>\w+) to have same (?P<what>metadata|numb)"
)
_PAIR = re.compile(
    r"pair\[(\d+)\] differ in (.*), where lhs is (.*) and rhs is (.*)$", re.MULTILINE
)
_COUNTS = re.compile(r"got lhs:\[(.*)\] and rhs:\[(.*)\]", re.DOTALL)
_TREES = re.compile(
    r"true branch tree_spec (.*?) vs false branch tree_spec (.*?)\.['\"\n]", re.DOTALL
)
_MERGED = re.compile(
    r"branches' output in torch.cond,\s+expected same (\w+) but got (.*?)\.['\"\n]"
)
_NESTED = re.compile(
    r"call_function scan\(.*_combine_fn_\d+.*"
    r"(?:detach_copy is not implemented|might be aliasing the input or the output)",
    re.DOTALL,
)
_STRIDES = re.compile(r"'stride: (\(.*?\)) vs (\(.*?\))'")
_FAKE = re.compile(r"FakeTensor\(\.\.\., size=\(([^)]*)\)(?:, dtype=torch\.(\w+))?")
_TEST = re.compile(
    r"Expected cond_fn to return a scalar tensor or a bool but got torch.Size\((.*)\)"
)


def explain_control(account: str, where: Origin) -> TilewrightError | None:
    """Turn torch's account of control flow that does not fit into ours; None for others."""
    found = _KIND.search(account)
    kind = _WORDS.get(found[1], found[1]) if found else "cond"
    if compared := _COMPARED.search(account):
        return _carry(account, kind, compared["lhs"] in ("init", "initial_xs"), where)
    if trees := _TREES.search(account):
        counts = [tree.count("*") for tree in trees.groups()]
        texts = [re.sub(r"\\n|\s", "", tree) for tree in trees.groups()]
        if counts[0] != counts[1]:
            texts = [f"{count} tensors" if count > 1 else "one tensor" for count in counts]
        return _branches(CaptureError, f"{texts[0]}, as the first gives", texts[1], where)
    if merged := _MERGED.search(account):
        error = DTypeError if merged[1] == "dtype" else ShapeError
        word = "rank" if merged[1] == "dim" else merged[1]
        return _branches(error, f"the same {word} in both", merged[2], where)
    if "outs_to_grad length" in account:
        return CaptureError(
            "a scan that carries an integer is asked for gradients",
            expected="carries of floating point: torch's scan has gradients beside no others",
            found="a carry without a gradient",
            where=where,
            mend="carry it as a floating-point number, or scan over torch.arange(length) instead",
        )
    if _NESTED.search(account):
        return CaptureError(
            "a scan in the body of a scan is asked for gradients",
            expected="a body without a scan of its own, where gradients are asked for",
            found="a scan in it, which torch's scan does not differentiate",
            where=where,
            mend="write the inner one as a Python loop over its rows: a long one becomes a scan",
        )
    if "Encountered aliasing" in account:
        return CaptureError(
            f"a body of a {kind} returns what it is given, or one tensor twice",
            expected="results with memory of their own",
            found="a result that shares memory",
            where=where,
            mend="return a copy: x.clone()",
        )
    if "Encountered input mutation" in account:
        return writes(kind, where)
    if tested := _TEST.search(account):
        return ShapeError(
            "the test of a while does not give one truth value",
            expected="bool[]",
            found=f"bool{tested[1]}",
            where=where,
            mend="reduce it: .any() or .all()",
        )
    return None


def writes(kind: str, where: Origin) -> MutationError:
    """The error for a body that changes in place what it is given."""
    return MutationError(
        f"a body of a {kind} changes what it is given in place",
        expected="results that are returned",
        found="an operand that is written",
        where=where,
        mend="return the new value in place of writing it",
    )


def _carry(account: str, kind: str, first: bool, where: Origin) -> TilewrightError:
    """first: whether the carry as it is taken is named first."""
    pair, counts = _PAIR.search(account), _COUNTS.search(account)
    if pair is None:
        given = (
            ["?", "?"] if counts is None else [str(c.count("FakeTensor(")) for c in counts.groups()]
        )
        taken, made = given if first else given[::-1]
        return CaptureError(
            f"the body of a {kind} gives another number of carries than it takes",
            expected=taken,
            found=made,
            where=where,
            mend="return a new value for each carry, in their order",
        )
    at, differing, one, other = pair.groups()
    taken, made = (_type(text) for text in ((one, other) if first else (other, one)))
    if taken == made:
        strides = [text for found in _STRIDES.findall(differing) for text in found]
        taken, made = (f"strides {text}" for text in (strides if first else strides[::-1]))
        return CaptureError(
            f"carry {at} of a {kind} changes its layout in memory",
            expected=taken,
            found=made,
            where=where,
            mend="return .contiguous() from the body, and begin with it",
        )
    return (ShapeError if taken.split("[")[1] != made.split("[")[1] else DTypeError)(
        f"carry {at} of a {kind} changes its type",
        expected=taken,
        found=made,
        where=where,
        mend="convert or reshape it in the body, or begin with a value of the type that it gives",
    )


def _type(text: str) -> str:
    found = _FAKE.search(text)
    if found is None:
        return f"{text}["
    # Torch does not print the element type that tensors have by default.
    return f"{found[2] or default_dtype()}[{found[1].rstrip(',')}]"


def default_dtype() -> str:
    """Return the element type that torch gives tensors, and leaves out where it prints them."""
    return str(torch.get_default_dtype()).removeprefix("torch.")


def _branches(
    error: type[TilewrightError], expected: str, found: str, where: Origin
) -> TilewrightError:
    return error(
        "the branches of a cond give different results",
        expected=expected,
        found=found.replace("torch.", ""),
        where=where,
        mend="convert or reshape what a branch returns: .to(dtype), .reshape(sizes)",
    )
