"""Checkpoints: one safetensors file that holds a run, checked whole before anything is touched.

The idea: tensors (of the module, of the optimizer's state, of the generator) and one JSON record
(settings, counts, what the caller adds), with a SHA-256 over both.  A file is written beside its
place and renamed into it, so that a reader sees the old one or the new one.  Nothing is unpickled.

This module does not know what a run is: position and configuration are the caller's words.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from tilewright.base.errors import CheckpointError
from tilewright.train.step import TrainStep

FORMAT = "tilewright checkpoint"
VERSION = "1"
PARTS = {"module", "optimizer", "step", "position", "config"}
Json = None | bool | int | float | str | list[Any] | dict[str, Any]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint read whole.  position: where in the data the run was.  config: the caller's."""

    path: Path
    tensors: Mapping[str, torch.Tensor]
    record: Mapping[str, Any]

    @property
    def position(self) -> int:
        return int(self.record["position"])

    @property
    def config(self) -> dict[str, Any]:
        return dict(self.record["config"])


def save_checkpoint(
    path: Path, step: TrainStep, *, position: int, config: Mapping[str, Json] | None = None
) -> None:
    """Write all that a run needs to go on bit for bit: module, optimizer, step, position.

    An existing file is replaced in one act; a failure leaves it as it was.
    """
    tensors: dict[str, torch.Tensor] = {}
    record = {
        "module": _pack_module(step.module, tensors),
        "optimizer": _pack_optimizer(step.optimizer, tensors),
        "step": _pack(step.state_dict(), "step", tensors),
        "position": position,
        "config": dict(config or {}),
    }
    text = _written(record, path)
    metadata = {"format": FORMAT, "version": VERSION, "record": text}
    metadata["sha256"] = _digest(tensors, text)
    _replace(path, safetensors.torch.save(tensors, metadata))


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and check a checkpoint; raise CheckpointError unless it is whole and of this format."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            _check_format(path, metadata)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise CheckpointError(
            f"there is no checkpoint {path}",
            expected="a file that save_checkpoint or `tilewright train` wrote",
            found="no file of that name",
            mend="name another file, or begin a run without --resume",
        ) from None
    except (safetensors.SafetensorError, OSError) as reason:
        raise _broken(path, str(reason)) from reason
    if _digest(tensors, metadata["record"]) != metadata["sha256"]:
        raise _broken(path, "contents that do not have the checksum written with them")
    with _well_formed(path):
        record = json.loads(metadata["record"])
    if not isinstance(record, dict) or set(record) != PARTS:
        found = f"with {', '.join(record)}" if isinstance(record, dict) else repr(record)
        raise _broken(path, f"a record {found}", f"a record with {', '.join(sorted(PARTS))}")
    return Checkpoint(path, tensors, record)


def restore(checkpoint: Checkpoint, step: TrainStep) -> None:
    """Put a checkpoint into a step's module, optimizer and counts; all of it fits, or nothing is.

    Raises CheckpointError where it is of another model or optimizer.
    """
    before = step.state_dict()
    with _well_formed(checkpoint.path):
        fitting = _fitting(checkpoint, step.module, step.optimizer)
        state = _unpack(checkpoint.record["step"], checkpoint.tensors)
        if set(state) != set(before):
            raise _foreign(checkpoint, "a step with " + ", ".join(before), ", ".join(state))
        try:
            step.load_state_dict(state)
            fitting.put_into(step.module, step.optimizer)
        except BaseException:
            step.load_state_dict(before)
            raise


def restore_eager(
    checkpoint: Checkpoint, module: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Put a checkpoint into a module and its optimizer, for a run that goes on without us."""
    with _well_formed(checkpoint.path):
        _fitting(checkpoint, module, optimizer).put_into(module, optimizer)


@dataclass(frozen=True, slots=True)
class _Fitting:
    """Contents that have been found to fit a module and its optimizer."""

    values: Mapping[str, torch.Tensor]
    state: dict[str, Any]

    def put_into(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        before = optimizer.state_dict()
        try:  # first, as the values are known to fit
            optimizer.load_state_dict(self.state)
        except BaseException:
            optimizer.load_state_dict(before)
            raise
        with torch.no_grad():
            for name, value in module.state_dict().items():
                value.copy_(self.values[name])


def _fitting(
    checkpoint: Checkpoint, module: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> _Fitting:
    return _Fitting(_unpack_module(checkpoint, module), _unpack_optimizer(checkpoint, optimizer))


# ----------------------------------------------------------------------------------------- packing


def _pack_module(module: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """Put a module's state among the tensors; returns the place of each name (tied ones share)."""
    places: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, value in module.state_dict(keep_vars=True).items():
        if not isinstance(value, torch.Tensor):
            raise CheckpointError(
                f"{name} in the module's state is no tensor",
                expected="parameters and buffers",
                found=type(value).__name__,
                mend="leave out get_extra_state, or save that part by yourself",
            )
        places[name] = first.setdefault(id(value), f"module/{name}")
        if places[name] not in tensors:
            tensors[places[name]] = value.detach().contiguous().clone()
    return places


def _pack_optimizer(
    optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]
) -> dict[str, Any]:
    state = optimizer.state_dict()
    groups = [_pack(group, f"group/{k}", tensors) for k, group in enumerate(state["param_groups"])]
    entries = {
        str(number): _pack(entry, f"optimizer/{number}", tensors)
        for number, entry in state["state"].items()
    }
    return {"class": type(optimizer).__name__, "groups": groups, "state": entries}


def _pack(value: Any, place: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return a value as JSON; its tensors go among the others, under their place."""
    match value:
        case torch.Tensor():
            tensors[place] = value.detach().contiguous().clone()
            return {"tensor": place}
        case dict():
            entries = {str(k): _pack(v, f"{place}/{k}", tensors) for k, v in value.items()}
            return {"entries": entries}
        case list() | tuple():
            items = [_pack(item, f"{place}/{k}", tensors) for k, item in enumerate(value)]
            return {"tuple" if isinstance(value, tuple) else "list": items}
        case None | bool() | int() | float() | str():
            return value
    raise CheckpointError(
        f"{place} cannot be saved",
        expected="tensors, numbers, texts, and lists, tuples and dicts of them",
        found=type(value).__name__,
        mend="remove it from the optimizer's groups and state before saving",
    )


def _unpack(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    match value:
        case {"tensor": str(place)}:
            return tensors[place].clone()
        case {"entries": dict(entries)}:
            return {name: _unpack(entry, tensors) for name, entry in entries.items()}
        case {"tuple": list(items)}:
            return tuple(_unpack(item, tensors) for item in items)
        case {"list": list(items)}:
            return [_unpack(item, tensors) for item in items]
        case None | bool() | int() | float() | str():
            return value
    raise ValueError(f"{value!r} is no packed value")


def _written(record: dict[str, Any], path: Path) -> str:
    try:
        return json.dumps(record, sort_keys=True)
    except (TypeError, ValueError) as reason:
        raise CheckpointError(
            f"the configuration cannot be saved to {path}",
            expected="numbers, texts, and lists and dicts of them",
            found=str(reason),
            known="nothing was written",
            mend="give config as plain values: str(path), float(rate)",
        ) from None


# ---------------------------------------------------------------------------------------- checking


@contextlib.contextmanager
def _well_formed(path: Path) -> Iterator[None]:
    """Refuse a record whose parts are not of the form that they are written in."""
    try:
        yield
    except CheckpointError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as reason:
        found = f"{type(reason).__name__}: {reason}"
        raise _broken(path, found, "a record in the form that save_checkpoint writes") from reason


def _check_format(path: Path, metadata: Mapping[str, str]) -> None:
    if metadata.get("format") != FORMAT or not {"version", "record", "sha256"} <= set(metadata):
        raise CheckpointError(
            f"{path} is not a checkpoint of a training run",
            expected=f"a safetensors file of the format {FORMAT!r}",
            found=f"format {metadata.get('format')!r}",
            mend="name the file that `tilewright train` wrote",
        )
    if metadata["version"] != VERSION:
        raise CheckpointError(
            f"{path} is of another version of the format",
            expected=f"version {VERSION}",
            found=f"version {metadata['version']}",
            mend="resume with the version of tilewright that wrote it",
        )


def _unpack_module(checkpoint: Checkpoint, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    places: dict[str, str] = checkpoint.record["module"]
    found = {name: checkpoint.tensors[place] for name, place in places.items()}
    wanted = module.state_dict()
    for name in (*wanted, *found):
        ours, theirs = wanted.get(name), found.get(name)
        if ours is None or theirs is None or not _alike(ours, theirs):
            raise _foreign(checkpoint, f"{name}: {_shown(ours)}", f"{name}: {_shown(theirs)}")
    return found


def _unpack_optimizer(checkpoint: Checkpoint, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    record = checkpoint.record["optimizer"]
    if record["class"] != type(optimizer).__name__:
        raise _foreign(checkpoint, f"the optimizer {type(optimizer).__name__}", record["class"])
    groups = [_unpack(group, checkpoint.tensors) for group in record["groups"]]
    sizes = [len(group["params"]) for group in groups]
    wanted = [len(group["params"]) for group in optimizer.param_groups]
    if sizes != wanted:
        raise _foreign(checkpoint, f"parameter groups of {wanted}", f"groups of {sizes}")
    owners = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in groups for number in group["params"]]
    state = {}
    for number, packed in record["state"].items():
        entry = _unpack(packed, checkpoint.tensors)
        owner = owners[numbers.index(int(number))]
        state[int(number)] = {name: _laid_out(owner, value) for name, value in entry.items()}
        _check_entry(checkpoint, number, owner, entry)
    return {"state": state, "param_groups": groups}


def _check_entry(
    checkpoint: Checkpoint, number: str, owner: torch.Tensor, entry: Mapping[str, Any]
) -> None:
    for name, value in entry.items():
        if isinstance(value, torch.Tensor) and name != "step" and value.shape != owner.shape:
            raise _foreign(
                checkpoint, f"{name} of parameter {number}: {_shown(owner)}", _shown(value)
            )


def _laid_out(owner: torch.Tensor, value: Any) -> Any:
    """Give a state tensor the strides of its parameter, which the file does not keep."""
    if not isinstance(value, torch.Tensor) or value.shape != owner.shape:
        return value
    return torch.empty_like(owner, dtype=value.dtype, requires_grad=False).copy_(value)


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype


def _shown(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "absent"
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _foreign(checkpoint: Checkpoint, expected: str, found: str) -> CheckpointError:
    return CheckpointError(
        f"{checkpoint.path} is the checkpoint of another model or optimizer",
        expected=expected,
        found=found,
        known="nothing of it was loaded",
        mend="resume with the model and settings that the run began with",
    )


def _broken(
    path: Path, found: str, expected: str = "a whole file with its own checksum"
) -> CheckpointError:
    return CheckpointError(
        f"{path} is truncated or altered",
        expected=expected,
        found=found,
        known="nothing of it was loaded",
        mend="go back to an earlier copy, or begin the run anew",
    )


# ------------------------------------------------------------------------------------------- bytes


def _digest(tensors: Mapping[str, torch.Tensor], record: str) -> str:
    """Return a checksum of names, types, shapes, elements and the record."""
    digest = hashlib.sha256(record.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _replace(path: Path, content: bytes) -> None:
    """Write beside the place, then rename: a reader sees the old file or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
