"""Files that are on the disk when they are written, among them tensors, one after the other."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from fedkeel.record.codec import Tensors

PARTIAL = ".partial"
"""How the name of a file ends that is being written."""
_FILE_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Types that every version of safetensors knows; others are written as bytes, with an axis more."""


@contextmanager
def synced(path: Path) -> Iterator[BinaryIO]:
    """A new file, on the disk when it is closed."""
    with path.open("xb", buffering=1 << 20) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until what was made, renamed or removed in it is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not every file system can do it
            raise
    finally:
        os.close(descriptor)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary name for a file, which gets its own when it is complete and on the disk.

    Who may read it is what the umask says, also where a library makes files that are private.
    """
    partial = path.with_name(path.name + PARTIAL)
    try:
        with partial.open("wb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        yield partial
        with partial.open("rb+") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) != mode:
                os.chmod(partial, mode)
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def write_tensors(path: Path, tensors: Tensors) -> tuple[int, str]:
    """A safetensors file, one tensor after the other: its size and SHA-256.

    The longest types come first, so that all data are aligned.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    ordered = sorted(tensors.items(), key=lambda item: -_file_type(item[1][0])[1])
    end = 0
    for name, rows in ordered:
        dtype, size, shape = _file_type(rows[0])
        start, end = end, end + size * len(rows) * prod(shape)
        header[name] = {"dtype": dtype, "shape": [len(rows), *shape], "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = sha256()
    with synced(path) as file:
        for part in _parts(text, ordered):
            digest.update(part)
            file.write(part)
    return 8 + len(text) + end, digest.hexdigest()


def _parts(header: bytes, ordered: Sequence[tuple[str, list[Tensor]]]) -> Iterator[Any]:
    yield len(header).to_bytes(8, "little")
    yield header
    for _, rows in ordered:
        for row in rows if rows[0].numel() else ():  # what is empty may have strides that forbid to look at bytes
            plain = row.detach().cpu().resolve_conj().resolve_neg().reshape(-1)
            if plain.stride(0) != 1:  # a single number may have any, and is called contiguous all the same
                plain = plain.clone(memory_format=torch.contiguous_format)
            yield plain.view(torch.uint8).numpy()


def _file_type(row: Tensor) -> tuple[str, int, tuple[int, ...]]:
    """Of a row in the file: the name of the type, its bytes, the shape."""
    if row.dtype in _FILE_DTYPES:
        return _FILE_DTYPES[row.dtype], row.dtype.itemsize, tuple(row.shape)
    return "U8", 1, (*row.shape, row.dtype.itemsize)
