"""The machines that are known by name, in the text form of machines.

The idea: hardware is data; a preset is what a user could have written.  Peaks, memories and links
are the vendors' (dense, without sparsity; a link's bandwidth is one device's in one direction).
Sources: the data sheets of NVIDIA Tesla V100, A100, H100 and H200, of DGX A100 (8 x 200 Gb/s a
node), DGX H100 and HGX H200 (8 x 400 Gb/s), and of Amazon EC2 P3 (25 Gb/s).

What no data sheet says is measured where it could be: latencies, shares and the price of a
collective of V100 and A100 are those of NCCL's all-reduce among the 8 devices of a node (vTrain's
tables; two A100s are 15 % off, four V100s 6 %); the six wires of each V100 go where
`nvidia-smi topo -m` says that they go; those of H100, H200 and of the links between nodes are taken
over from A100.
What products and memory reach, and what the host takes for operators, micro-batches, the loss and
each two ranks, fits every third step of vTrain's single-node table on A100
(`python -m bench.plan_accuracy --constants`); other devices take it over.  The slow-down of
computing beside sending is Galvatron's (1.1256).
This module does not know what a machine is.
"""

from pathlib import Path

from tilewright.base.errors import MachineError
from tilewright.cost.scanner import LONGEST

FITTED = """constants: gemm_fraction 0.78, memory_fraction 0.8, product_seconds 40us,
  operator_seconds 62us, micro_batch_seconds 430us, loss_seconds 2.5ms, collective_seconds {},
  straggler_seconds 3.7us, overlap_slowdown 1.13
"""

NODES: tuple[tuple[str, str], ...] = (
    (
        "p3.16xlarge",
        """
machine p3.16xlarge x 8
device v100-sxm2-16g: memory 16GiB, bandwidth 900GB/s, launch 5us, float16 125TFLOP/s,
  float32 15.7TFLOP/s, float64 7.8TFLOP/s
link nvlink: groups 8,
  wires 0/1 0/2 0/3x2 0/4x2 1/2x2 1/3 1/5x2 2/3x2 2/6 3/7 4/5 4/6 4/7x2 5/6x2 5/7 6/7x2,
  latency 4.3us, bandwidth 150GB/s, share 0.91
link ethernet: latency 20us, bandwidth 390.625MB/s, share 0.9
""" + FITTED.format("15us"),
    ),
    (
        "dgx-a100-40g",
        """
machine dgx-a100-40g x 8
device a100-sxm-40g: memory 40GiB, bandwidth 1.555TB/s, launch 5us, bfloat16 312TFLOP/s,
  float16 312TFLOP/s, float32 19.5TFLOP/s, float64 19.5TFLOP/s
link nvlink: groups 8, latency 2.7us, bandwidth 300GB/s, share 0.76
link infiniband: latency 5us, bandwidth 25GB/s, share 0.9
""" + FITTED.format("40us"),
    ),
    (
        "dgx-a100-80g",
        """
machine dgx-a100-80g x 8
device a100-sxm-80g: memory 80GiB, bandwidth 2.039TB/s, launch 5us, bfloat16 312TFLOP/s,
  float16 312TFLOP/s, float32 19.5TFLOP/s, float64 19.5TFLOP/s
link nvlink: groups 8, latency 2.7us, bandwidth 300GB/s, share 0.76
link infiniband: latency 5us, bandwidth 25GB/s, share 0.9
""" + FITTED.format("40us"),
    ),
    (
        "dgx-h100",
        """
machine dgx-h100 x 8
device h100-sxm-80g: memory 80GiB, bandwidth 3.35TB/s, launch 5us, float8 1.979PFLOP/s,
  bfloat16 989.4TFLOP/s, float16 989.4TFLOP/s, float32 66.9TFLOP/s, float64 66.9TFLOP/s
link nvlink: groups 8, latency 2.7us, bandwidth 450GB/s, share 0.76
link infiniband: latency 5us, bandwidth 50GB/s, share 0.9
""" + FITTED.format("40us"),
    ),
    (
        "hgx-h200",
        """
machine hgx-h200 x 8
device h200-sxm-141g: memory 141GB, bandwidth 4.8TB/s, launch 5us, float8 1.979PFLOP/s,
  bfloat16 989.4TFLOP/s, float16 989.4TFLOP/s, float32 66.9TFLOP/s, float64 66.9TFLOP/s
link nvlink: groups 8, latency 2.7us, bandwidth 450GB/s, share 0.76
link infiniband: latency 5us, bandwidth 50GB/s, share 0.9
""" + FITTED.format("40us"),
    ),
    (
        "host-2core",
        """
machine host-2core x 2
device cpu-core: memory 4GiB, bandwidth 8GB/s, launch 1us, float32 60GFLOP/s, float64 30GFLOP/s
link loopback: latency 30us, bandwidth 1.5GB/s, share 0.9
constants: gemm_fraction 0.9, memory_fraction 0.9, product_seconds 0s,
  operator_seconds 0s, micro_batch_seconds 0s, loss_seconds 0s, collective_seconds 50us,
  straggler_seconds 0s, overlap_slowdown 1.5
""",
    ),
)  # fmt: skip


def preset_names() -> tuple[str, ...]:
    """Return the names of the machines that are known."""
    return tuple(name for name, _ in NODES)


def read_machine(path: Path) -> str:
    """Return the text of a file, for a machine that is known by none; raise MachineError."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(LONGEST + 1).strip()  # a longer one is refused by the scanner
    except (OSError, UnicodeDecodeError) as error:
        found = error.strerror if isinstance(error, OSError) else "bytes that are no text"
        raise MachineError(
            f"the text of a machine cannot be read: {path.name}",
            expected="a file in UTF-8, as `tilewright machine NAME` prints",
            found=found or type(error).__name__,
            mend="write `tilewright machine here > host.txt`, say",
        ) from None
