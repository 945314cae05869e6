"""Downloads one published file: resumed where a part of it is there, and checked before it counts."""

from __future__ import annotations

import errno
import hashlib
import re
import shutil
import time
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from fedkeel.data.sources import progress
from fedkeel.data.sources.source import SourceError
from fedkeel.errors import words

ATTEMPTS = 4
"""How often one address is tried when its answers break off."""
_PAUSE_SECONDS = 1.0
_CHUNK = 1 << 18
_PASSING = {408, 425, 429, 500, 502, 503, 504}
"""The HTTP errors that may go away."""


class UnreachableError(SourceError):
    """There is no connection to a host."""


class _BrokenOffError(SourceError):
    """A transfer ended early; another attempt may succeed."""


@dataclass(frozen=True)
class Published:
    """A file as its publishers offer it; `digest` is `algorithm:hex` of exactly these bytes."""

    name: str
    size: int
    digest: str

    @property
    def is_archive(self) -> bool:
        """Whether the data set's files are inside it."""
        return self.name.endswith((".tar.gz", ".zip"))

    def mismatch(self, path: Path) -> str:
        """What is wrong with a copy of this file; nothing, if it is the published one."""
        algorithm, _, expected = self.digest.partition(":")
        with path.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
        return "" if found == expected else f"has the {algorithm} checksum {found} instead of {expected}"


def complete(url: str, file: Published, part: Path) -> None:
    """Downloads what is missing of `part`; afterwards it is the published file, or a SourceError was raised."""
    failure = SourceError("it was not tried")
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_SECONDS * attempt)
        resumed = _size(part) > 0
        try:
            _transfer(url, file, part)
        except _BrokenOffError as error:
            failure = error
            continue
        wrong = file.mismatch(part)
        if not wrong:
            return
        part.unlink()
        failure = SourceError(f"delivered a file that {wrong}")
        if not resumed:  # a resumed file may have begun with another one's bytes
            break
    raise failure


def _transfer(url: str, file: Published, part: Path) -> None:
    """Appends to `part` what the server sends, until it is complete."""
    have = _size(part)
    if have == file.size:
        return
    if have > file.size:
        part.unlink()
        have = 0
    _require_space(part.parent, file, have)
    with _answer(url, have, part) as response:
        start = _start(response, have, part)
        _check_length(response, file, start)
        with part.open("ab" if start else "wb") as out:
            _copy(response, out, file, start)


def _answer(url: str, have: int, part: Path) -> HTTPResponse:
    from urllib.request import Request

    from fedkeel.data.sources.opener import opened

    request = Request(url, headers={"User-Agent": "fedkeel", **({"Range": f"bytes={have}-"} if have else {})})
    try:
        return opened(request)
    except HTTPError as error:
        error.close()
        if error.code == 416:  # the part is no beginning of this file
            part.unlink(missing_ok=True)
        passing = error.code in _PASSING or (error.code == 416 and have > 0)
        raise (_BrokenOffError if passing else SourceError)(f"answered {error.code} {_words(error)}") from None
    except URLError as error:
        through = f" through the proxy {request.host}" if request.host != urlsplit(url).netloc else ""
        raise UnreachableError(f"could not be reached{through} ({_words(error)})") from None
    except (OSError, HTTPException) as error:
        raise _BrokenOffError(f"did not answer ({_words(error)})") from None


def _start(response: HTTPResponse, have: int, part: Path) -> int:
    """Where in the file the answer begins: at 0 if the server cannot resume."""
    if response.status != 206:
        return 0
    told = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    if told is None or int(told[1]) != have:
        part.unlink(missing_ok=True)
        raise _BrokenOffError("resumed at another place than asked for")
    return have


def _check_length(response: HTTPResponse, file: Published, start: int) -> None:
    """A file of another size is refused before it is downloaded."""
    length = response.headers.get("Content-Length", "")
    if not length.isdecimal() or int(length) == file.size - start:
        return
    page = response.headers.get_content_type() == "text/html"
    hint = " (it is a web page, perhaps the login page of a network)" if page else ""
    raise SourceError(f"had {start + int(length):,} bytes instead of {file.size:,}{hint}")


def _copy(response: HTTPResponse, out: BinaryIO, file: Published, done: int) -> None:
    progress.tell(f"downloading {file.name}", done, file.size)
    while True:
        try:
            chunk = response.read(_CHUNK)
        except (OSError, HTTPException) as error:
            raise _BrokenOffError(f"broke off after {done:,} of {file.size:,} bytes ({_words(error)})") from None
        if not chunk:
            break
        done += len(chunk)
        if done > file.size:
            raise SourceError(f"sent more than the {file.size:,} bytes of the file")
        out.write(chunk)
        progress.tell(f"downloading {file.name}", done, file.size)
    if done < file.size:
        raise _BrokenOffError(f"broke off after {done:,} of {file.size:,} bytes")


def _require_space(folder: Path, file: Published, have: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < file.size - have:
        need = f"{file.name} needs {(file.size - have) / 1e6:,.1f} MB, and {free / 1e6:,.1f} MB are free"
        raise OSError(errno.ENOSPC, need)


def _words(error: Exception) -> str:
    """The system's words for why something failed."""
    inner = error.reason if isinstance(error, URLError) else error
    said = getattr(inner, "strerror", None) if isinstance(inner, OSError) else None
    return said or words(inner if isinstance(inner, Exception) else Exception(inner)) or type(inner).__name__


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
