"""The assertion that no bit of what is computed tells how many threads there were."""

from collections.abc import Callable, Sequence

import torch

Tensor = torch.Tensor


def assert_threads_change_no_bit(run: Callable[[], Sequence[Tensor]]) -> None:
    """Assert that one, two and three threads compute the same.

    Short steps are shared only if `segments.MUCH` was small when they were compiled.
    """
    before, found = torch.get_num_threads(), list[Sequence[Tensor]]()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(run())
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))
