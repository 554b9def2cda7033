"""Which iteration an element belongs to: told where its index says it, and nowhere else."""

import pytest

from tilewright.base.errors import LoopError
from tilewright.kernels.loops_check import verify
from tilewright.kernels.loops_text import parse

BLOCKS_ANEW = """a0: f32[256]
v0: f32[256]  y[i0<256] = a0[i0]
-> v0
parallel u in 0..2:
  let q = u * APART
  for b in q..q + APART by 32:
    lanes l in 0..32:
      let r0 = b + l
      v0(r0)
"""


def test_blocks_that_begin_anew_may_meet_those_before() -> None:
    verify(parse(BLOCKS_ANEW.replace("APART", "96")))
    with pytest.raises(LoopError, match="iterations of u do not run apart"):
        verify(parse(BLOCKS_ANEW.replace("APART", "100")))
