"""Opening files that a user names."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import BinaryIO

from fedkeel.errors import words


def open_file(path: Path) -> BinaryIO:
    """Opened for reading; whatever stands in the way is an OSError with its reason as `strerror`.

    A named pipe is refused, as nobody may ever write to it; those below /dev are a shell's, with a writer each.
    """
    try:
        if path.is_fifo() and path.parts[:2] not in (("/", "dev"), ("/", "proc")):
            raise OSError(errno.EINVAL, "it is a named pipe")
        return path.open("rb")
    except ValueError:  # a NUL, or half of a character
        raise OSError(errno.EINVAL, "no file can have such a name") from None


def reason(error: Exception) -> str:
    """Why a file cannot be read, in the system's words where there are any, on one line."""
    return getattr(error, "strerror", None) or words(error)
