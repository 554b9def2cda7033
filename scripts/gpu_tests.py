"""Say which GPU is here and run the tests marked `gpu`; without one, say so and succeed.

This script does not know what the tests need beyond a CUDA device.
"""

import subprocess
import sys

import torch

NO_TESTS_COLLECTED = 5  # pytest's own exit code


def main(arguments: list[str]) -> int:
    if not torch.cuda.is_available():
        print(f"No CUDA device that torch {torch.__version__} can use: the GPU tests are skipped.")
        return 0
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        print(f"GPU {index}: {found.name}, {found.total_memory / 2**30:.0f} GiB")
    done = subprocess.run([sys.executable, "-m", "pytest", "-m", "gpu", *arguments], check=False)
    if done.returncode == NO_TESTS_COLLECTED:
        print("No test is marked gpu: everything so far runs on the CPU.")
        return 0
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
