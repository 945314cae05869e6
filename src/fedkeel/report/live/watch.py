"""One thread that looks after folders and keeps the newest snapshot for all readers."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from threading import Condition, Event, Thread

from fedkeel.errors import FedkeelError, InputError, words
from fedkeel.record.follow import follow
from fedkeel.report.live.snapshot import Snapshot
from fedkeel.report.live.sources import Mark, Sources
from fedkeel.study.store import is_comparison

LOOK_SECONDS = 1.0
"""Between two looks at the folders, and at least between two snapshots."""
SHARE = 4.0
"""After a snapshot this many times as long as it took, so that runs keep the processor."""
PATIENCE = 1e6
"""For how long a run is followed without a new row; it may be resumed any time."""


class Watch:
    """The newest snapshot, made anew when something changed."""

    def __init__(self, sources: Sources) -> None:
        """Takes the first snapshot; what can never be read is refused here."""
        sources.check()
        self._sources = sources
        self._changed = Condition()
        self._wake, self._stop = Event(), Event()
        self._mark: Mark = ()
        """Of the folders before the newest snapshot was taken."""
        self._failure = ""
        """What went wrong when we last looked, if anything did."""
        self._newest = Snapshot(sources.read())
        self._threads = [Thread(target=self._run, name="fedkeel-watch", daemon=True)]
        if len(sources.paths) == 1 and not is_comparison(sources.paths[0]):
            self._threads.append(Thread(target=self._follow, args=sources.paths, name="fedkeel-follow", daemon=True))

    def start(self) -> None:
        """Look after the folders from now on."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let all readers go."""
        self._stop.set()
        self._wake.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    @property
    def stopped(self) -> bool:
        """Whether readers are to go."""
        return self._stop.is_set()

    @property
    def waiting(self) -> list[Path]:
        """Folders that hold nothing yet."""
        return self._sources.waiting

    @property
    def newest(self) -> Snapshot:
        """As things are, or were when the folders could last be read."""
        return self._newest

    def wait(self, tag: str, seconds: float) -> Snapshot | None:
        """The newest snapshot as soon as it is another than the one with this tag; None after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self.stopped or self._newest.tag != tag, seconds)
            return self._newest if self._newest.tag != tag else None

    @property
    def _folders(self) -> list[Path]:
        return [each.folder for each in self._newest.results.outcomes]

    def _run(self) -> None:
        while not self.stopped:
            mark = self._sources.mark(self._folders)
            if mark != self._mark:
                began = time.monotonic()
                self._look(mark)
                self._stop.wait(max(LOOK_SECONDS, SHARE * (time.monotonic() - began)))
            else:
                self._wake.wait(LOOK_SECONDS)
                self._wake.clear()

    def _look(self, mark: Mark) -> None:
        """Take a snapshot. A file that is cut off and written again may look wrong once; what stays wrong is told."""
        try:
            snapshot = Snapshot(self._sources.read())
        except Exception as error:  # whatever it is, the page must not stand still in silence
            failure = (
                str(error) if isinstance(error, FedkeelError) else f"this page shows an earlier state ({words(error)})"
            )
            again, self._failure = failure == self._failure, failure
            if not again:
                return
            snapshot = Snapshot(self._newest.results, failure)
        else:
            self._failure = ""
        self._publish(snapshot)
        self._mark = mark

    def _publish(self, snapshot: Snapshot) -> None:
        with self._changed:
            self._newest = snapshot
            self._changed.notify_all()

    def _follow(self, path: Path) -> None:
        """Look at once when the run has a new evaluation, until it is complete."""
        with suppress(InputError, TimeoutError):  # whoever takes the snapshot says what is wrong
            for _ in follow(path, ["history"], timeout=PATIENCE, poll_seconds=LOOK_SECONDS / 4, stop=self._stop):
                self._wake.set()
