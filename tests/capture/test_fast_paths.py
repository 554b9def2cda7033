"""torch's fast paths of attention modules are operators of ours, with eager's results."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.capture.test_entry import call
from torch import nn

from tilewright.capture import capture

WIDTH, HEADS, LENGTH, BATCH = 12, 2, 5, 3
MASKS = ("none", "padding", "source", "both", "heads", "nothing")


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def masks(which: str) -> dict[str, torch.Tensor]:
    """Arguments of MultiheadAttention; of `nothing`, one of the batch has no key at all."""
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[0, 3:] = padding[1, 1] = True
    source = torch.ones(LENGTH, LENGTH).triu(1).bool()
    heads = torch.rand(BATCH * HEADS, LENGTH, LENGTH) > 0.6
    heads[..., 0] = False
    nothing = padding.clone()
    nothing[2] = True
    return {
        "none": {},
        "padding": {"key_padding_mask": padding},
        "source": {"attn_mask": source},
        "both": {"key_padding_mask": padding, "attn_mask": source},
        "heads": {"attn_mask": heads},
        "nothing": {"key_padding_mask": nothing},
    }[which]


def module(made: nn.Module) -> nn.Module:
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.4)
    return made.eval()


def same(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """What is captured is made of operators of ours, and gives what eager gives."""
    captured = capture(fn, *args, **kwargs)
    assert not [node.op for node in captured.graph.nodes if node.op.startswith("aten.")]
    torch.testing.assert_close(
        call(captured, *args, **kwargs), fn(*args, **kwargs), rtol=1e-4, atol=1e-6, equal_nan=True
    )


@pytest.mark.parametrize("which", MASKS)
@pytest.mark.parametrize(("norm_first", "activation"), [(True, "relu"), (False, "gelu")])
def test_an_encoder_layer(norm_first: bool, activation: str, which: str) -> None:
    sizes: Any = (WIDTH, HEADS, 16)
    flags: Any = {"batch_first": True, "norm_first": norm_first, "layer_norm_eps": 1e-3}
    layer = module(nn.TransformerEncoderLayer(*sizes, activation=activation, **flags))
    names = {"key_padding_mask": "src_key_padding_mask", "attn_mask": "src_mask"}
    given = {names[name]: mask for name, mask in masks(which).items()}
    same(layer, torch.randn(BATCH, LENGTH, WIDTH), **given)


@pytest.mark.parametrize("which", MASKS)
@pytest.mark.parametrize(("weights", "average"), [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize("itself", [False, True])
def test_attention(itself: bool, weights: bool, average: bool, which: str) -> None:
    """Of three tensors, or one to itself: by the operator, which traced modules call where they
    are part of an encoder alone."""
    query, key, value = torch.randn(3, BATCH, LENGTH, WIDTH)
    tensors = (query, query, query) if itself else (query, key, value)
    projections = [torch.randn(3 * WIDTH, WIDTH), torch.randn(3 * WIDTH)]
    projections += [torch.randn(WIDTH, WIDTH), torch.randn(WIDTH)]
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    given = masks(which)
    merged, kind = attention.merge_masks(
        given.get("attn_mask"), given.get("key_padding_mask"), query
    )

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: torch.Tensor) -> Any:
        asked: Any = (weights, average, kind)
        mask = rest[4] if len(rest) > 4 else None
        found = torch._native_multi_head_attention(q, k, v, WIDTH, HEADS, *rest[:4], mask, *asked)
        return found if weights else found[0]

    same(attend, *tensors, *projections, *([] if merged is None else [merged]))


@pytest.mark.parametrize("whole", [False, True])
def test_an_encoder_of_sizes_that_vary(whole: bool, caplog: pytest.LogCaptureFixture) -> None:
    """whole: its width varies too, as far as Dynamo knows; then it is torch's call."""
    layer = module(nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=True))
    compiled = torch.compile(layer, backend="tilewright", dynamic=whole or None)
    for batch, length in ((2, 4), (3, 7), (4, 5)):
        x, padding = torch.randn(batch, length, WIDTH), torch.zeros(batch, length).bool()
        padding[:, 2] = True
        for dim in () if whole else (0, 1):
            torch._dynamo.mark_dynamic(x, dim)
            torch._dynamo.mark_dynamic(padding, dim)
        found = compiled(x, src_key_padding_mask=padding)
        expected = layer(x, src_key_padding_mask=padding)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert not caplog.records
