"""Values in half types are rounded once, where they are made, and stored as they are."""

import torch

import tilewright as tw


def test_what_is_a_bfloat16_is_stored_as_it_is() -> None:
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    x, other = every.view(torch.bfloat16), every.flip(0).contiguous().view(torch.bfloat16)
    chosen = torch.arange(len(every)) % 3 == 0
    pick = tw.compile(lambda c, x, y: (torch.where(c, x, y), x.float()), chosen, x, other)
    found, wide = pick(chosen, x, other)
    expected = torch.where(chosen, x, other)
    same = found.view(torch.int16) == expected.view(torch.int16)
    assert (same | expected.isnan()).all()
    assert found.isnan().equal(expected.isnan())
    assert (wide.view(torch.int32) >> 16).to(torch.int16).equal(every)


def test_a_cast_to_bfloat16_rounds_once() -> None:
    low = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=torch.int32)
    high = torch.arange(1 << 16, dtype=torch.int32) << 16
    x = (high[:, None] | low).flatten().view(torch.float32)
    cast = tw.compile(lambda x: x.to(torch.bfloat16), x)
    found, expected = cast(x), x.to(torch.bfloat16)
    assert found.isnan().equal(x.isnan())
    same = found.view(torch.int16) == expected.view(torch.int16)
    assert (same | x.isnan()).all()
    (kernel,) = cast.program.kernels
    assert kernel.text.count("store_bf16(") == 2, "its definition, and one call"
