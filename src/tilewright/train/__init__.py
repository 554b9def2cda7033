"""Training: one step as one graph, the loop around it, and checkpoints that resume bit for bit."""

from tilewright.train.checkpoint import (
    Checkpoint,
    read_checkpoint,
    restore,
    restore_eager,
    save_checkpoint,
)
from tilewright.train.joint import without_updates
from tilewright.train.live import LiveLine
from tilewright.train.loop import Batches, History, Moment, Warmup, generate, held_out_loss, run
from tilewright.train.step import TrainStep, train_step

__all__ = [
    "Batches",
    "Checkpoint",
    "History",
    "LiveLine",
    "Moment",
    "TrainStep",
    "Warmup",
    "generate",
    "held_out_loss",
    "read_checkpoint",
    "restore",
    "restore_eager",
    "run",
    "save_checkpoint",
    "train_step",
    "without_updates",
]
