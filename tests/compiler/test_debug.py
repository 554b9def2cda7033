"""Debug mode: also where random numbers are drawn, which go on afterwards as if nothing was."""

import torch

import tilewright as tw


def test_dropout_and_rand_agree_with_eager_in_debug_mode() -> None:
    def draw(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5) * torch.rand(4, 6)

    x = torch.randn(4, 6)
    compiled = tw.compile(draw, x, options=tw.Options(check="eager"))
    torch.manual_seed(3)
    found = compiled(x)
    torch.manual_seed(3)
    torch.testing.assert_close(found, draw(x))


def test_debug_mode_runs_behind_torch_compile() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    x = torch.randn(3, 4)
    compiled = torch.compile(net, backend="tilewright", options={"check": "eager"})
    torch.testing.assert_close(compiled(x), net(x))
