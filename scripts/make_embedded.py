"""Makes the data set that travels with the package: a class-balanced part of Fashion-MNIST.

Running it again gives the same bytes (with the same zlib).
"""

from __future__ import annotations

import gzip
import io
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedkeel import streams
from fedkeel.data import datasets
from fedkeel.data.readers import idx

TARGET = Path(__file__).parents[1] / "src/fedkeel/data/embedded"
PER_CLASS = {"train": 600, "t10k": 150}
CLASSES = 10
SEED = 0


def choose(labels: NDArray[np.int64], per_class: int, split: int) -> NDArray[np.int64]:
    """`per_class` indices of every class, in the order of the official set."""
    chosen = []
    for label in range(CLASSES):
        members = np.flatnonzero(labels == label)
        stream = streams.keys(SEED, "embedded fashion-mnist-mini", split, label)
        chosen.append(members[streams.permutations(stream, len(members))[0, :per_class]])
    return np.sort(np.concatenate(chosen))


def pack(array: NDArray[np.uint8]) -> bytes:
    """Gzipped IDX, without name or time."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0) as file:
        file.write(header + array.tobytes())
    return buffer.getvalue()


def main() -> None:
    """Writes the four files and reports their sizes."""
    source = datasets.get("fashion-mnist")
    for split, (prefix, per_class) in enumerate(PER_CLASS.items()):
        images, labels = idx.read_split(source, prefix, CLASSES)
        chosen = choose(labels, per_class, split)
        contents = {
            f"{prefix}-images-idx3-ubyte.gz": pack(images[chosen, 0]),
            f"{prefix}-labels-idx1-ubyte.gz": pack(labels[chosen].astype(np.uint8)),
        }
        for name, content in contents.items():
            (TARGET / name).write_bytes(content)
            print(f"{name}: {len(content):,} bytes")


if __name__ == "__main__":
    main()
