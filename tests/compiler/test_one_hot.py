"""One-hot vectors are loops of ours, and an index that is no class stays an error."""

import pytest
import torch
import torch.nn.functional as F

import tilewright as tw

Tensor = torch.Tensor


@pytest.mark.parametrize("shape", [(5,), (2, 3), (), (0,), (2, 0)])
def test_one_hot_is_made_of_loops(shape: tuple[int, ...], fallbacks: list[str]) -> None:
    def f(ids: Tensor) -> Tensor:
        return F.one_hot(ids, 4)

    ids = torch.randint(0, 4, shape)
    compiled = tw.compile(f, ids, options=tw.Options(library=False))
    assert torch.equal(compiled(ids), f(ids))
    assert torch.equal(torch.compile(f, backend="tilewright")(ids), f(ids))
    for wrong in (4, -1) if ids.numel() else ():
        for call in (compiled, torch.compile(f, backend="tilewright")):
            with pytest.raises(IndexError):
                call(torch.full(shape, wrong))
    assert fallbacks == []
