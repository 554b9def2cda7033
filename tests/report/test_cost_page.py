"""The page of what a model costs: by its numbers, and captured."""

from collections.abc import Callable

import pytest
import torch

import tilewright as tw
from tilewright.cost import ModelSpec
from tilewright.models.convnet import convnet
from tilewright.report import graph_page, model_page

Golden = Callable[[str, str], None]


@pytest.mark.parametrize("name", ["gpt3-175b", "mixtral-8x7b"])
def test_the_page_of_a_model_by_its_numbers(name: str, golden: Golden) -> None:
    golden(f"cost_{name}.txt", "\n".join(model_page(ModelSpec.parse(name), 1)))


def test_the_page_of_a_captured_model(golden: Golden) -> None:
    with torch.device("meta"):
        net = convnet()
        pictures = torch.empty(8, 3, 32, 32)
    golden("cost_convnet.txt", "\n".join(graph_page(tw.capture(net, pictures).graph)))


def test_what_cannot_be_counted_is_named() -> None:
    page = graph_page(tw.capture(torch.linalg.inv, torch.empty(4, 4, device="meta")).graph)
    assert any(line.split()[:2] == ["uncounted", "aten.linalg_inv.default"] for line in page)
    assert not any("activations" in line for line in page)
