"""From what a reader returns to tensors. PyTorch is imported when there are some: a list of data sets needs none."""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedkeel.data import text
from fedkeel.data.cache import write_atomically
from fedkeel.data.datasets.examples import Examples
from fedkeel.data.readers.content import Images, Labels
from fedkeel.data.sources.layout import Found

Integers = NDArray[np.integer]
Scaling = Literal["standard", "unit", "none"]
"""What becomes of pixels: scaled to 0..1, then (x - mean) / std per channel; scaled to 0..1; 0..255 as in the files."""
_FITS_IN_CACHE = 256  # images that the processor keeps at hand from one operation to the next


class Preparation(Protocol):
    """Reads a data set's files and makes tensors of them."""

    def __call__(self, found: Found, scaling: Scaling) -> tuple[Examples, Examples]:
        """Training and test examples; token ids are not scaled."""


@dataclass(frozen=True)
class Normalise:
    """Images, scaled as asked for, with the mean and the standard deviation of each channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, found: Found, scaling: Scaling) -> tuple[Examples, Examples]:
        """Reads and scales both splits."""
        train, test = found.layout.read(found.folder)
        return self._examples(*train, scaling), self._examples(*test, scaling)

    def _examples(self, images: Images, labels: Labels, scaling: Scaling) -> Examples:
        import torch

        x = torch.empty(images.shape)  # not NumPy's: it asks for huge pages, which virtual machines are slow to give
        mean, std = (np.array(values, np.float32).reshape(-1, 1, 1) for values in (self.mean, self.std))
        for start in range(0, len(x), _FITS_IN_CACHE):  # but NumPy's operations: they wait for no other thread
            part = x[start : start + _FITS_IN_CACHE].numpy()
            part[:] = images[start : start + _FITS_IN_CACHE]
            if scaling != "none":
                part /= np.float32(255)
            if scaling == "standard":
                part -= mean
                part /= std
        return Examples(x, torch.from_numpy(labels))


@dataclass(frozen=True)
class Tokenise:
    """Texts to token ids, which are kept beside the texts for the next time."""

    tokenizer: text.HashingTokenizer

    def __call__(self, found: Found, scaling: Scaling) -> tuple[Examples, Examples]:
        """Reads the kept ids, or else the texts."""
        import torch

        path = found.folder / f"tokens-{self._key(found)}.npz"
        arrays = _load(path)
        if arrays is None:
            arrays = self._encode(found)
            _keep(path, arrays)
        train_x, train_y, test_x, test_y = (torch.from_numpy(array.astype(np.int64)) for array in arrays)
        return Examples(train_x, train_y), Examples(test_x, test_y)

    def _key(self, found: Found) -> str:
        """Names everything that the ids depend on."""
        return blake2b(f"{text.SCHEME} {self.tokenizer} {found.state()}".encode(), digest_size=8).hexdigest()

    def _encode(self, found: Found) -> list[Integers]:
        train, test = found.layout.read(found.folder)
        small = np.min_scalar_type(self.tokenizer.vocabulary - 1)
        train_x, test_x = (self.tokenizer.encode(split[0]).astype(small) for split in (train, test))
        return [train_x, train[1], test_x, test[1]]


def _load(path: Path) -> list[Integers] | None:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = [archive[name] for name in archive.files]
    except Exception:  # a damaged archive can fail in any way, and is made anew
        return None
    return arrays if len(arrays) == 4 else None


def _keep(path: Path, arrays: list[Integers]) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, *arrays)
    with suppress(OSError):  # a read-only cache only costs time
        write_atomically(path, buffer.getvalue())
