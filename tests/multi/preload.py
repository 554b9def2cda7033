"""What processes of ranks are forked with: whoever is forked need not import it again."""

import torch.distributed

import tilewright.cost
import tilewright.runtime.messages

__all__ = ["tilewright", "torch"]
