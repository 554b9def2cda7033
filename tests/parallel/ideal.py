"""Plans of small models on a machine on which only products take time."""

from tilewright.cost import Constants, Device, Link, Machine
from tilewright.parallel import Prediction, make_plan

PEAK = 1e12
FRACTION = 0.5


def ideal(devices: int, *, bandwidth: float = 1e15, slowdown: float = 1.0) -> Machine:
    """A machine on which only products (and, if asked, links) take time."""
    device = Device("d", 1e15, 1e15, 0.0, (("float16", PEAK), ("bfloat16", PEAK)))
    constants = Constants(gemm_fraction=FRACTION, memory_fraction=1.0, overlap_slowdown=slowdown)
    return Machine("ideal", device, (Link("all", None, 0.0, bandwidth),), devices, constants)


def priced(model: str, machine: Machine, batch: int, seq: int = 64, **fix: object) -> Prediction:
    settings = {
        "precision": "float16", "attention": "unfused", "overlap": "none", "micro_batch": 1,
        "recompute": "none", "zero": 0, "tp": 1, "pp": 1, "sequence_parallel": False,
    }  # fmt: skip
    return make_plan(model, machine, batch=batch, seq=seq, fix=settings | fix).predicted


GPT = "gpt:layers=8,hidden=512,heads=8,vocab=1000,positions=64"
DEEP = "gpt:layers=16,hidden=64,heads=8,vocab=1000,positions=64"
HEADLESS = "gpt:layers=8,hidden=512,heads=8,vocab=1,positions=64"
