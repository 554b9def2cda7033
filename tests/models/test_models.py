"""The models are the architectures they claim to be, and the corpus is a function of its files."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tilewright.models import FACTORIES, convnet, gpt, lstm, mlp, moe, text


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (mlp.mlp, 64 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10),
        # GPT-2's 124M from its published sizes: tied head, biases everywhere.
        (partial(gpt.gpt, 50257, 1024, layers=12, width=768, heads=12), 124_439_808),
        (convnet.convnet, 11_173_962),
        # Four gates of each layer from input and state with two biases; embedding and head.
        (lstm.lstm, 2 * 4 * 256 * (2 * 256 + 2) + 1000 * 256 + 1000 * 256 + 1000),
    ],
    ids=["mlp", "gpt2", "resnet18", "lstm"],
)
def test_parameter_counts_are_the_published_ones(make: Callable[[], nn.Module], count: int) -> None:
    assert _parameters(make()) == count


@pytest.mark.parametrize("name", [name for name, _ in FACTORIES])
def test_every_factory_gives_a_model_that_learns_its_example_batch(name: str) -> None:
    module_name, factory = dict(FACTORIES)[name].split(":")
    modules = {"mlp": mlp, "gpt": gpt, "moe": moe, "lstm": lstm, "convnet": convnet}
    module = modules[module_name.rsplit(".", 1)[1]]
    torch.manual_seed(0)
    model = getattr(module, factory)()
    inputs, targets = module.example_batch(model, 2, seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = module.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("factor", [0.3, 1.25, 4.0])
def test_experts_serve_first_choices_first_and_no_more_than_their_capacity(factor: float) -> None:
    torch.manual_seed(0)
    layer = moe.Experts(6, 4, factor).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(10, 6, dtype=torch.float64)
    found, balance = layer(x)
    shares = layer.router(x).softmax(1)
    wanted, queued = torch.zeros_like(x), [0] * 4
    for choice in range(2):
        for token in range(10):
            best = shares[token].argsort(descending=True)[:2]
            expert = int(best[choice])
            queued[expert] += 1
            if queued[expert] <= layer.capacity(10):
                inner = F.gelu(x[token] @ layer.up[expert], approximate="tanh")
                weight = shares[token, expert] / shares[token, best].sum()
                wanted[token] += weight * (inner @ layer.down[expert])
    torch.testing.assert_close(found, wanted)
    first = torch.bincount(shares.argmax(1), minlength=4) / 10
    torch.testing.assert_close(balance, 4 * (first.double() * shares.mean(0)).sum())


def test_logits_have_the_batch_and_position_of_the_ids() -> None:
    model = gpt.gpt_small()
    assert model(torch.zeros(3, 17, dtype=torch.int64)).shape == (3, 17, 512)


def test_gpt_equals_the_transformers_library_with_the_same_weights() -> None:
    transformers = pytest.importorskip("transformers")
    model = gpt.gpt(vocab=60, length=16, layers=2, width=24, heads=3).eval()
    config = transformers.GPT2Config(
        vocab_size=60,
        n_positions=16,
        n_layer=2,
        n_embd=24,
        n_head=3,
        bos_token_id=0,
        eos_token_id=0,
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs.load_state_dict(_as_transformers(model.state_dict()), strict=False)
    ids = torch.randint(60, (2, 16))
    with torch.no_grad():
        torch.testing.assert_close(model(ids), theirs(ids).logits)


def _as_transformers(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Our names to GPT-2's; its linear weights are stored `[in, out]`."""
    names = (
        ("tokens.", "transformer.wte."),
        ("positions.", "transformer.wpe."),
        ("blocks.", "transformer.h."),
        ("norm_attention", "ln_1"),
        ("norm_mlp", "ln_2"),
        ("attention.qkv", "attn.c_attn"),
        ("attention.out", "attn.c_proj"),
        ("mlp.up", "mlp.c_fc"),
        ("mlp.down", "mlp.c_proj"),
    )
    renamed = {}
    for key, value in state.items():
        name = f"transformer.ln_f.{key[5:]}" if key.startswith("norm.") else key
        for ours, theirs in names:
            name = name.replace(ours, theirs)
        is_conv1d = ".c_" in name and name.endswith("weight")
        renamed[name.replace("head.", "lm_head.")] = value.T if is_conv1d else value
    return renamed


def test_gpt_does_not_look_ahead() -> None:
    model = gpt.gpt_small().eval()
    ids = torch.randint(512, (2, 20))
    changed = ids.clone()
    changed[:, 11:] = (changed[:, 11:] + 1) % 512
    before, after = model(ids), model(changed)
    torch.testing.assert_close(before[:, :11], after[:, :11])
    assert (before[:, 11:] - after[:, 11:]).abs().amax(-1).min() > 0


def test_an_untied_head_has_weights_of_its_own() -> None:
    tied, untied = gpt.gpt(layers=1, width=32), gpt.gpt(layers=1, width=32, tied=False)
    assert tied.head.weight is tied.tokens.weight
    assert _parameters(untied) - _parameters(tied) == 256 * 32


def test_dropout_acts_in_training_only() -> None:
    model = gpt.gpt(vocab=32, length=8, layers=1, width=16, heads=2, dropout=0.5)
    ids = torch.randint(32, (2, 8))
    assert not torch.equal(model(ids), model(ids))
    model.eval()
    assert torch.equal(model(ids), model(ids))


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="width 10 is not a multiple of heads 3"):
        gpt.gpt(width=10, heads=3)
    with pytest.raises(ValueError, match="needs an input and an output size"):
        mlp.mlp((4,))


# The corpus -----------------------------------------------------------------------------------


def test_the_split_is_by_file_and_covers_everything_once() -> None:
    corpus = text.standard_library()
    train, held_out = set(corpus.train_files), set(corpus.held_out_files)
    assert not train & held_out
    assert len(train) + len(held_out) == len(corpus.train_files) + len(corpus.held_out_files)
    assert 0.03 < len(corpus.held_out) / len(corpus.train) < 0.3
    assert int((corpus.train == text.END).sum()) == len(train)
    skipped = {"test", "tests", "site-packages", "lib2to3"}
    assert not any(skipped & set(Path(name).parts[:-1]) for name in train | held_out)
    assert "argparse.py" in train | held_out


def test_the_corpus_is_the_same_every_time() -> None:
    first, second = text.standard_library(), text.standard_library()
    assert first.train_files == second.train_files
    assert torch.equal(first.train, second.train)
    assert torch.equal(first.held_out, second.held_out)


def test_a_new_file_moves_no_other_file_across_the_split(tmp_path: Path) -> None:
    for i in range(40):
        (tmp_path / f"module{i}.py").write_text(f"x = {i}\n")
    before = text.standard_library(tmp_path)
    (tmp_path / "added.py").write_text("y = 1\n")
    after = text.standard_library(tmp_path)
    assert set(before.train_files) <= set(after.train_files)
    assert set(before.held_out_files) <= set(after.held_out_files)


def test_an_empty_folder_is_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no Python sources"):
        text.standard_library(tmp_path)


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    data = torch.randint(256, (5000,), dtype=torch.uint8)
    batches = text.TextBatches(data, batch=4, length=32, seed=7)
    later = [batches.at(step) for step in (0, 1, 2)]
    resumed = text.TextBatches(data, batch=4, length=32, seed=7).at(2)
    assert torch.equal(later[2][0], resumed[0])
    assert not torch.equal(later[0][0], later[1][0])
    assert not torch.equal(text.TextBatches(data, 4, 32, seed=8).at(2)[0], resumed[0])


def test_targets_are_the_next_bytes_of_a_window_of_the_data() -> None:
    data = torch.arange(200, dtype=torch.uint8)
    inputs, targets = text.TextBatches(data, batch=64, length=10).at(0)
    assert inputs.dtype == torch.int64
    assert inputs.shape == targets.shape == (64, 10)
    assert torch.equal(targets, inputs + 1)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_every_window_can_be_drawn() -> None:
    data = torch.arange(12, dtype=torch.uint8)
    inputs, _ = text.TextBatches(data, batch=500, length=10).at(0)
    assert set(inputs[:, 0].tolist()) == {0, 1}


def test_evaluation_batches_spread_from_the_first_byte_to_the_last() -> None:
    data = torch.arange(100, dtype=torch.uint8)
    batches = text.evaluation_batches(data, batch=3, length=9, count=4)
    starts = np.concatenate([inputs[:, 0].numpy() for inputs, _ in batches])
    assert starts[0] == 0
    assert batches[-1][1][-1, -1] == 99
    assert (np.diff(starts) > 0).all()


def test_text_shorter_than_a_window_is_refused() -> None:
    with pytest.raises(ValueError, match="hold no window of 11"):
        text.TextBatches(torch.zeros(10, dtype=torch.uint8), batch=1, length=10)


def test_bytes_decode_back_to_text() -> None:
    written = "def f(x):\n    return '\u00e9'\n"
    assert text.decode(torch.tensor(list(written.encode()))) == written
