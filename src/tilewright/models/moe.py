"""A GPT whose position-wise networks are mixtures of experts: two of many for each token.

The idea: a router scores the experts, each token goes to the two best, an expert takes at most its
capacity of tokens (first choices before second ones, earlier positions before later ones) and what
overflows passes by on the residual stream, so that every shape is fixed (GShard, Lepikhin et al.,
2021).  A loss of balance keeps the router from preferring few (Switch, Fedus et al., 2022).
Knows nothing but torch.  Dims: b batch, t position, n tokens, d width, e expert, c place in an
expert's queue, v vocabulary.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tilewright.models.gpt import Attention, Config

CHOICES = 2
BALANCE = 0.01  # how much of the balance is in the loss, as in Switch


class Experts(nn.Module):
    """`[n, d]` to `[n, d]`, and how unbalanced the routing was (1 is even)."""

    def __init__(self, width: int, experts: int, capacity_factor: float) -> None:
        super().__init__()
        self.experts = experts
        self.capacity_factor = capacity_factor
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, width, 4 * width))
        self.down = nn.Parameter(torch.empty(experts, 4 * width, width))

    def capacity(self, tokens: int) -> int:
        """How many of `tokens` tokens one expert takes at most."""
        return math.ceil(self.capacity_factor * CHOICES * tokens / self.experts)

    def forward(self, x_nd: Tensor) -> tuple[Tensor, Tensor]:
        tokens, width = x_nd.shape
        capacity = self.capacity(tokens)
        shares_ne = self.router(x_nd).softmax(1)
        best_nk, expert_nk = shares_ne.topk(CHOICES, 1)
        weight_nk = best_nk / best_nk.sum(1, keepdim=True)
        # Choice by choice: all first choices queue before any second one.
        expert = expert_nk.t().reshape(-1)
        chosen = (expert[:, None] == torch.arange(self.experts)).long()
        place = (chosen.cumsum(0) * chosen).sum(1) - 1
        kept = place < capacity
        # What overflows is written to one row more, and read from a row of zeros.
        row = torch.where(kept, expert * capacity + place, self.experts * capacity)
        sent = x_nd.repeat(CHOICES, 1)
        queues = x_nd.new_zeros(self.experts * capacity + 1, width).index_put((row,), sent)
        queues_ecd = queues[:-1].view(self.experts, capacity, width)
        hidden = F.gelu(torch.bmm(queues_ecd, self.up), approximate="tanh")
        done = torch.bmm(hidden, self.down).view(-1, width)
        back = F.pad(done, (0, 0, 0, 1))[row] * weight_nk.t().reshape(-1, 1)
        y_nd = back.view(CHOICES, tokens, width).sum(0)
        # Share of first choices times mean probability, which are 1 / experts each when even.
        first_e = chosen[:tokens].to(shares_ne.dtype).mean(0)
        return y_nd, self.experts * (first_e * shares_ne.mean(0)).sum()


class Block(nn.Module):
    """Norm and attention, norm and experts, each added to the residual stream."""

    def __init__(self, config: Config, experts: int, capacity_factor: float) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm_experts = nn.LayerNorm(config.width)
        self.mixture = Experts(config.width, experts, capacity_factor)

    def forward(self, x_btd: Tensor) -> tuple[Tensor, Tensor]:
        x_btd = x_btd + self.attention(self.norm_attention(x_btd))
        y_nd, balance = self.mixture(self.norm_experts(x_btd).flatten(0, 1))
        return x_btd + y_nd.view(x_btd.shape), balance


class Moe(nn.Module):
    """Token ids `[b, t]` to logits `[b, t, v]` and the mean balance of the blocks `[]`."""

    def __init__(self, config: Config, experts: int, capacity_factor: float) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab, config.width)
        self.positions = nn.Embedding(config.length, config.width)
        self.blocks = nn.ModuleList(
            Block(config, experts, capacity_factor) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        self.head.weight = self.tokens.weight
        self._initialise()

    def forward(self, ids_bt: Tensor) -> tuple[Tensor, Tensor]:
        x_btd = self.tokens(ids_bt) + self.positions.weight[: ids_bt.shape[1]]
        balances = []
        for block in self.blocks:
            x_btd, balance = block(x_btd)
            balances.append(balance)
        return self.head(self.norm(x_btd)), torch.stack(balances).mean()

    def _initialise(self) -> None:
        """GPT-2's, experts included."""
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)


def moe(
    vocab: int = 256,
    length: int = 128,
    layers: int = 2,
    width: int = 128,
    heads: int = 4,
    experts: int = 8,
    capacity_factor: float = 1.25,
) -> Moe:
    """A mixture of experts of the given sizes; by default byte-level, 8 experts of width 128."""
    return Moe(Config(vocab, length, layers, width, heads), experts, capacity_factor)


def example_batch(model: Moe, batch: int = 8, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Uniform token ids and, as targets, the same shifted by one position."""
    config = model.config
    source = torch.Generator().manual_seed(seed)
    ids = torch.randint(config.vocab, (batch, config.length + 1), generator=source)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    """Mean cross-entropy over all positions, and a hundredth of the balance."""
    logits_btv, balance = output
    return F.cross_entropy(logits_btv.flatten(0, 1), target.flatten()) + BALANCE * balance
