"""A recurrent language model: embedding, LSTM layers, and a linear head over the vocabulary.

The idea: the state carries all that was read, so time is a loop and each step is small; what can
be done for all steps at once (the input's products, the head) is most of the arithmetic.
Knows nothing but torch.  Dims: b batch, t position, v vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Lstm(nn.Module):
    """Token ids to scores of the next token; the state begins with zeros."""

    def __init__(self, vocab: int, length: int, layers: int, width: int, dropout: float) -> None:
        super().__init__()
        if min(vocab, length, layers, width) < 1:
            raise ValueError(
                f"an lstm needs sizes of at least 1, got {vocab=}, {length=}, {layers=}, {width=}"
            )
        self.vocab, self.length = vocab, length
        self.tokens = nn.Embedding(vocab, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids_bt: Tensor) -> Tensor:
        states, _ = self.lstm(self.tokens(ids_bt))
        scores: Tensor = self.head(states)
        return scores


def lstm(
    vocab: int = 1000, length: int = 64, layers: int = 2, width: int = 256, dropout: float = 0.0
) -> Lstm:
    """An LSTM language model; dropout stands between its layers."""
    return Lstm(vocab, length, layers, width, dropout)


def example_batch(model: Lstm, batch: int = 8, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Uniform token ids, and the same shifted by one as targets."""
    source = torch.Generator().manual_seed(seed)
    ids = torch.randint(model.vocab, (batch, model.length + 1), generator=source)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def loss(output_btv: Tensor, target_bt: Tensor) -> Tensor:
    """Mean cross-entropy over all positions."""
    return F.cross_entropy(output_btv.flatten(0, 1), target_bt.flatten())
