"""Where an older torch that we support does other than the newest, so that oracles must know it."""

import torch

OLD_TORCH = torch.__version__ < (2, 13)
