"""Augmentation of image batches [n, C, H, W]; every random bit is the caller's."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def random_crop_flip(x: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Crops every image at a random place of its zero-padded self, and mirrors it with probability 1/2.

    One draw an image: the first images of a longer batch are treated as they would be without the rest.
    """
    side = 2 * padding + 1
    drawn = torch.randint(0, side * side * 2, (len(x),), generator=generator, device=generator.device).to(x.device)
    return crop_flip(x, drawn // (2 * side), drawn // 2 % side, drawn % 2 == 1, padding)


def crop_flip(x: Tensor, top: Tensor, left: Tensor, mirrored: Tensor, padding: int = 4) -> Tensor:
    """Image i, zero-padded on all sides, cut to its size at (top[i], left[i]), then mirrored if so said.

    `top` and `left` are integers 0..2*padding, `mirrored` is boolean, all of shape [n].
    """
    n, channels, height, width = x.shape
    across, down = (torch.arange(length, device=x.device) for length in (width, height))
    columns = left[:, None] + torch.where(mirrored[:, None], across.flip(0), across)
    rows = top[:, None] + down
    pixels = rows[:, :, None] * (width + 2 * padding) + columns[:, None, :]
    padded = functional.pad(x, [padding] * 4).flatten(2)
    return padded.gather(2, pixels.view(n, 1, -1).expand(n, channels, -1)).view(x.shape)


def resize(x: Tensor, size: int) -> Tensor:
    """Every image resized to `size` x `size`, bilinear, smoothed against aliasing where it shrinks."""
    return functional.interpolate(x, size=(size, size), mode="bilinear", align_corners=False, antialias=True)
