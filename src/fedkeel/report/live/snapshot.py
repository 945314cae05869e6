"""What there is to see of runs at one moment, in the forms in which browsers get it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from threading import Lock

from fedkeel.report.page.digest import digest
from fedkeel.report.page.html import document
from fedkeel.study.results import Results


class Snapshot:
    """Results, and their digest as JSON; the page is made when somebody asks for it, once."""

    def __init__(self, results: Results, problem: str | None = None) -> None:
        """A `problem` is something that kept newer results from being read; it is told beside these."""
        self.results = results
        told = replace(results, notes=(*results.notes, problem)) if problem else results
        self._told = digest(told)
        self._lock = Lock()
        self.digest = json.dumps(self._told, allow_nan=False, separators=(",", ":")).encode()
        self.tag = sha256(self.digest).hexdigest()[:16]
        """The same for the same digest, also after the server was started again."""

    @property
    def page(self) -> bytes:
        """The whole page, with this digest in it."""
        with self._lock:
            return self._page

    @cached_property
    def _page(self) -> bytes:
        return document(self._told, live=True).encode()
