"""An input of a model as a word of the command line: `8x64:float32`, `8x16:int64:512`.

The idea: extents, element type, and for integers how many values there are.  Floats are drawn from
the normal distribution, integers evenly from 0, all from one seed.

This module does not know the model.
"""

import math
import re

import torch

from tilewright.base.dtypes import BY_TORCH_NAME
from tilewright.base.errors import OptionError

MOST_ELEMENTS = 1 << 31
_WORD = re.compile(r"(?P<shape>(\d+(x\d+)*)?):(?P<dtype>\w+)(:(?P<values>\d+))?", re.ASCII)


def read_inputs(words: tuple[str, ...]) -> tuple[torch.Tensor, ...]:
    """Return a tensor for each word; raise OptionError for one that says no tensor."""
    source = torch.Generator().manual_seed(0)
    return tuple(_drawn(word, source) for word in words)


def _drawn(word: str, source: torch.Generator) -> torch.Tensor:
    match = _WORD.fullmatch(word)
    if match is None or match["dtype"] not in BY_TORCH_NAME:
        raise OptionError(
            f"--input {word} says no tensor",
            expected="extents, `:`, and one of " + ", ".join(BY_TORCH_NAME),
            found=repr(word),
            mend="write 8x64:float32; :float32 is one number, 8x16:int64:512 holds ids below 512",
        )
    shape = [int(extent) for extent in match["shape"].split("x") if extent]
    if math.prod(shape) > MOST_ELEMENTS:
        raise OptionError(
            f"--input {word} is too large to be looked at",
            expected=f"at most {MOST_ELEMENTS:,} elements",
            found=f"{math.prod(shape):,}",
            mend="give smaller extents",
        )
    dtype = BY_TORCH_NAME[match["dtype"]]
    made = getattr(torch, dtype.torch_name)
    if dtype.kind == "int":
        values, largest = int(match["values"] or 1), torch.iinfo(made).max
        if 1 <= values <= largest:
            return torch.randint(values, shape, generator=source).to(made)
        raise OptionError(
            f"--input {word} asks for integers that {dtype.torch_name} does not have",
            expected=f"a count from 1 to {largest}",
            found=str(values),
            mend="give a smaller count, or a wider type",
        )
    if match["values"] is not None:
        raise OptionError(
            f"--input {word} counts the values of a type that is not integer",
            expected="an integer type before the count",
            found=dtype.torch_name,
            mend=f"leave out :{match['values']}",
        )
    drawn = torch.randn(shape, generator=source)
    return drawn > 0 if dtype.kind == "bool" else drawn.to(made)
