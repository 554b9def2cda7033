"""A run goes on from its checkpoint bit for bit; a bad file loads nothing."""

import copy
import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from tilewright import train_step
from tilewright.base.errors import CheckpointError
from tilewright.train import TrainStep, read_checkpoint, restore, save_checkpoint

Golden = Callable[[str, str], None]


class Net(nn.Module):
    """Tied layers, dropout and batch norm: all that a run has to remember."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.second = nn.Linear(width, width)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.dropout(self.norm(self.first(x)), 0.3, self.training)
        out: torch.Tensor = self.second(hidden)
        return out


def mean_square(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output - target) ** 2).mean()


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(4, 6, generator=source), torch.randn(4, 6, generator=source)


def begin(seed: int, cls: type[torch.optim.Optimizer] = torch.optim.AdamW) -> TrainStep:
    torch.manual_seed(seed)
    net = Net()
    settings: dict[str, Any] = {"momentum": 0.9} if cls is torch.optim.SGD else {}
    groups = [
        {"params": [net.first.weight], "weight_decay": 0.1},
        {"params": [p for p in net.parameters() if p is not net.first.weight]},
    ]
    return train_step(net, mean_square, cls(groups, lr=0.01, **settings), *batch(0))


def contents(step: TrainStep) -> Any:
    return copy.deepcopy((step.module.state_dict(), step.optimizer.state_dict(), step.state_dict()))


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "checkpoint.safetensors"
    step = begin(0)
    for seed in range(2):
        step(*batch(seed))
    save_checkpoint(path, step, position=2, config={"width": 6, "rate": 0.1})
    return path


@pytest.mark.parametrize("cls", [torch.optim.AdamW, torch.optim.SGD])
def test_a_resumed_run_is_the_run_that_was_not_interrupted(
    cls: type[torch.optim.Optimizer], tmp_path: Path
) -> None:
    path = tmp_path / "run" / "checkpoint.safetensors"
    step = begin(0, cls)
    for seed in range(3):
        step(*batch(seed))
    step.optimizer.param_groups[1]["lr"] = 0.005
    save_checkpoint(path, step, position=3)
    straight = [step(*batch(seed)).item() for seed in range(3, 6)]

    other = begin(7, cls)
    checkpoint = read_checkpoint(path)
    restore(checkpoint, other)
    again = [other(*batch(seed)).item() for seed in range(checkpoint.position, 6)]
    assert again == straight
    assert same(contents(other), contents(step))


def test_what_the_caller_adds_comes_back(saved: Path) -> None:
    checkpoint = read_checkpoint(saved)
    assert checkpoint.position == 2
    assert checkpoint.config == {"width": 6, "rate": 0.1}


def test_tied_parameters_are_saved_once(saved: Path) -> None:
    names = safetensors.torch.load_file(saved).keys()
    assert "module/first.weight" in names
    assert "module/second.weight" not in names


def test_a_save_that_fails_leaves_the_old_file(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(saved.read_bytes())
    step = begin(0)
    step.optimizer.param_groups[0]["odd"] = object()
    with pytest.raises(CheckpointError, match="group/0/odd cannot be saved"):
        save_checkpoint(path, step, position=3)
    assert path.read_bytes() == saved.read_bytes()
    assert list(tmp_path.iterdir()) == [path]


# ------------------------------------------------------------------------------------- bad files


def header(content: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def assembled(entries: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def with_metadata(content: bytes, **changes: str) -> bytes:
    entries, data = header(content)
    entries["__metadata__"].update(changes)
    return assembled(entries, data)


def other_record(content: bytes) -> bytes:
    entries, _ = header(content)
    record = json.loads(entries["__metadata__"]["record"])
    record["position"] = 99
    return with_metadata(content, record=json.dumps(record, sort_keys=True))


def other_parts(_: bytes) -> bytes:
    """A record of something else, with a checksum that fits."""
    record, one = '{"weights": {}}', torch.ones(1)
    digest = hashlib.sha256(record.encode() + b"\nx torch.float32 [1]\n" + one.numpy().tobytes())
    metadata = {"format": "tilewright checkpoint", "version": "1", "record": record}
    return safetensors.torch.save({"x": one}, {**metadata, "sha256": digest.hexdigest()})


def no_json(content: bytes) -> bytes:
    return forged(content, "{")


def forged(content: bytes, record: str) -> bytes:
    """A file with another record, whose checksum fits."""
    tensors = safetensors.torch.load(content)
    entries, _ = header(content)
    metadata = entries["__metadata__"] | {"record": record}
    digest = hashlib.sha256(record.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"\n{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return safetensors.torch.save(tensors, metadata | {"sha256": digest.hexdigest()})


def swapped_names(content: bytes) -> bytes:
    entries, data = header(content)
    a, b = "module/first.bias", "module/second.bias"
    entries[a], entries[b] = entries[b], entries[a]
    return assembled(entries, data)


BAD: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "one_byte_short": lambda content: content[:-1],
    "one_bit_flipped": lambda content: content[:-3] + bytes([content[-3] ^ 1]) + content[-2:],
    "other_record": other_record,
    "other_parts": other_parts,
    "no_json": no_json,
    "swapped_names": swapped_names,
    "other_version": lambda content: with_metadata(content, version="99"),
    "foreign": lambda _: safetensors.torch.save({"weight": torch.ones(2)}),
    "text": lambda _: b"not a checkpoint at all, but a text of some length",
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused(
    name: str, saved: Path, tmp_path: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("checkpoint.safetensors")
    path.write_bytes(BAD[name](saved.read_bytes()))
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    golden(f"checkpoint_{name}.txt", str(caught.value))


def test_every_byte_counts(saved: Path, tmp_path: Path) -> None:
    content = saved.read_bytes()
    path = tmp_path / "checkpoint.safetensors"
    (length,) = struct.unpack("<Q", content[:8])
    text = content[8 : 8 + length].rstrip()
    places = [*range(0, 8 + len(text), 37), *range(8 + length, len(content), 53)]
    for at in places:
        path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        with pytest.raises(CheckpointError):
            read_checkpoint(path)


def test_a_missing_file_is_refused(golden: Golden) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(Path("nowhere/checkpoint.safetensors"))
    golden("checkpoint_missing.txt", str(caught.value))


def plain(net: nn.Module, optimizer: torch.optim.Optimizer) -> TrainStep:
    return train_step(net, mean_square, optimizer, *batch(0))


FOREIGN: dict[str, Callable[[], TrainStep]] = {
    "other_optimizer": lambda: begin(1, torch.optim.SGD),
    "other_groups": lambda: plain(net := Net(), torch.optim.AdamW(net.parameters())),
    "other_model": lambda: plain(
        net := nn.Sequential(nn.Linear(6, 6)), torch.optim.AdamW(net.parameters())
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_checkpoint_of_another_run_is_refused_and_loads_nothing(
    name: str, saved: Path, golden: Golden
) -> None:
    step = FOREIGN[name]()
    before = contents(step)
    with pytest.raises(CheckpointError) as caught:
        restore(read_checkpoint(saved), step)
    assert same(contents(step), before)
    golden(f"checkpoint_{name}.txt", str(caught.value).replace(str(saved), "FILE"))


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every path into a record."""
    if not isinstance(value, dict | list):
        return
    for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*at, key)
        yield from places(entry, (*at, key))


def test_a_forged_record_is_refused_or_fits_and_never_loads_half(
    saved: Path, tmp_path: Path
) -> None:
    content = saved.read_bytes()
    text = header(content)[0]["__metadata__"]["record"]
    path = tmp_path / "checkpoint.safetensors"
    step = begin(1)
    before = contents(step)
    refused = 0
    for at in places(json.loads(text)):
        if at[0] in ("config", "position"):
            continue
        for other in (None, "x", 10**30, {"tensor": "nowhere"}):
            record = json.loads(text)
            inner = record
            for key in at[:-1]:
                inner = inner[key]
            inner[at[-1]] = other
            path.write_bytes(forged(content, json.dumps(record, sort_keys=True)))
            try:
                restore(read_checkpoint(path), step)
            except CheckpointError:
                refused += 1
                assert same(contents(step), before), (at, other)
            else:
                step.module.load_state_dict(before[0])
                step.optimizer.load_state_dict(copy.deepcopy(before[1]))
                step.load_state_dict(before[2])
                assert same(contents(step), before)
    assert refused > 100
