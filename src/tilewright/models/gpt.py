"""A GPT-2 style decoder: learned positions, pre-norm blocks, a fused qkv projection.

The idea: exactly GPT-2's architecture, with the sizes in one frozen `Config`; byte-level by
default.  Knows nothing but torch.  Dims: b batch, t position, d width, v vocabulary.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of a GPT: `length` is the longest context, `width` the residual stream's."""

    vocab: int = 256
    length: int = 128
    layers: int = 4
    width: int = 256
    heads: int = 4
    dropout: float = 0.0
    tied: bool = True

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")


class Attention(nn.Module):
    """Causal self-attention over all heads at once."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x_btd: Tensor) -> Tensor:
        b, t, d = x_btd.shape
        split = (b, t, self.heads, d // self.heads)
        q, k, v = (part.view(split).transpose(1, 2) for part in self.qkv(x_btd).split(d, dim=2))
        rate = self.dropout if self.training else 0.0
        y_bhte = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        mixed: Tensor = self.out(y_bhte.transpose(1, 2).reshape(b, t, d))
        return mixed


class Mlp(nn.Module):
    """The position-wise network: four times as wide inside, GELU (tanh form)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x_btd: Tensor) -> Tensor:
        y: Tensor = self.down(F.gelu(self.up(x_btd), approximate="tanh"))
        return y


class Block(nn.Module):
    """Norm and attention, norm and mlp, each added to the residual stream."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm_mlp = nn.LayerNorm(config.width)
        self.mlp = Mlp(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_btd: Tensor) -> Tensor:
        x_btd = x_btd + self.dropout(self.attention(self.norm_attention(x_btd)))
        y: Tensor = x_btd + self.dropout(self.mlp(self.norm_mlp(x_btd)))
        return y


class Gpt(nn.Module):
    """Token ids `[b, t]` to logits `[b, t, vocab]`; t may be shorter than `config.length`."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab, config.width)
        self.positions = nn.Embedding(config.length, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        if config.tied:
            self.head.weight = self.tokens.weight
        self._initialise()

    def forward(self, ids_bt: Tensor) -> Tensor:
        x_btd = self.tokens(ids_bt) + self.positions.weight[: ids_bt.shape[1]]
        x_btd = self.dropout(x_btd)
        for block in self.blocks:
            x_btd = block(x_btd)
        logits_btv: Tensor = self.head(self.norm(x_btd))
        return logits_btv

    def _initialise(self) -> None:
        """GPT-2's: deviation 0.02, and less where a projection adds to the residual stream."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for block in self.blocks:
            assert isinstance(block, Block), "blocks hold Block only"
            for projection in (block.attention.out, block.mlp.down):
                nn.init.normal_(projection.weight, std=0.02 / math.sqrt(2 * self.config.layers))


def gpt(
    vocab: int = 256,
    length: int = 128,
    layers: int = 4,
    width: int = 256,
    heads: int = 4,
    dropout: float = 0.0,
    tied: bool = True,
) -> Gpt:
    """A GPT of the given sizes; by default byte-level, 4 layers of width 256."""
    return Gpt(Config(vocab, length, layers, width, heads, dropout, tied))


def gpt_small() -> Gpt:
    """2 layers of width 64, vocabulary 512, context 64: where overhead, not arithmetic, counts."""
    return gpt(vocab=512, length=64, layers=2, width=64)


def example_batch(model: Gpt, batch: int = 8, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Uniform token ids and, as targets, the same shifted by one position."""
    config = model.config
    source = torch.Generator().manual_seed(seed)
    ids = torch.randint(config.vocab, (batch, config.length + 1), generator=source)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy over all positions."""
    return F.cross_entropy(output.flatten(0, 1), target.flatten())
