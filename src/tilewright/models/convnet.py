"""ResNet-18 for 32x32 images: a 3x3 stem without pooling, four stages of two basic blocks.

The idea: the usual CIFAR form of the network, with batch norm and its running statistics.
Knows nothing but torch.  Dims: b batch, c channels, h and w pixels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IMAGE = (3, 32, 32)


def _conv3x3(channels_in: int, channels_out: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False)


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut, which is projected where the shape changes."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(channels_in, channels_out, stride)
        self.norm1 = nn.BatchNorm2d(channels_out)
        self.conv2 = _conv3x3(channels_out, channels_out, 1)
        self.norm2 = nn.BatchNorm2d(channels_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=False),
                nn.BatchNorm2d(channels_out),
            )

    def forward(self, x_bchw: Tensor) -> Tensor:
        y_bchw = F.relu(self.norm1(self.conv1(x_bchw)))
        return F.relu(self.norm2(self.conv2(y_bchw)) + self.shortcut(x_bchw))


class ResNet18(nn.Module):
    """Images `[b, 3, 32, 32]` to class scores `[b, classes]`."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.stem = _conv3x3(IMAGE[0], 64, 1)
        self.norm = nn.BatchNorm2d(64)
        blocks: list[nn.Module] = []
        channels_in = 64
        for channels_out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks.append(Block(channels_in, channels_out, stride))
            blocks.append(Block(channels_out, channels_out, 1))
            channels_in = channels_out
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(512, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x_bchw: Tensor) -> Tensor:
        y_bchw = self.blocks(F.relu(self.norm(self.stem(x_bchw))))
        scores: Tensor = self.head(y_bchw.mean((2, 3)))
        return scores


def convnet(classes: int = 10) -> ResNet18:
    """ResNet-18 for 32x32 images."""
    return ResNet18(classes)


def example_batch(model: ResNet18, batch: int = 8, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Normal images and uniform class targets."""
    source = torch.Generator().manual_seed(seed)
    images = torch.randn(batch, *IMAGE, generator=source)
    return images, torch.randint(model.classes, (batch,), generator=source)


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy of class scores."""
    return F.cross_entropy(output, target)
