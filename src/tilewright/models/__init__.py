"""Plain PyTorch models that examples, tests and benchmarks share.

The idea: each module is one architecture and gives a `Config` or sizes, factories (usable as
`tilewright.models.gpt:gpt`), `example_batch(model, batch, seed=...)` with inputs and targets that
fit the model, and `loss(output, target)`.  Nothing here knows the rest of this package: these
files are what any user could have written.
"""

FACTORIES: tuple[tuple[str, str], ...] = (
    ("mlp", "tilewright.models.mlp:mlp"),
    ("gpt", "tilewright.models.gpt:gpt"),
    ("gpt-small", "tilewright.models.gpt:gpt_small"),
    ("moe", "tilewright.models.moe:moe"),
    ("lstm", "tilewright.models.lstm:lstm"),
    ("convnet", "tilewright.models.convnet:convnet"),
)
"""Short names of the models here, and where their factories are."""
