"""How a site loads its data when a run begins: with statistics that all sites compute together, if it needs any."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from fedkeel.data.files.schema import Schema, agree
from fedkeel.data.pool import pooled_summary, pooled_total
from fedkeel.data.summaries import Counts, Summary
from fedkeel.data.summary_wire import counts_from_wire, summary_from_wire, summary_to_wire
from fedkeel.deploy import site as sites
from fedkeel.deploy.prepared import Built, Project
from fedkeel.deploy.site import Site, SitePool
from fedkeel.errors import FedkeelError
from fedkeel.record.durable import whole
from fedkeel.runner.targets import fitted, label_totals
from fedkeel.world.remote.message import Message

Ask = Callable[[Message], Message]


class LoadingError(Exception):
    """A site's data could not be loaded, or its model could not be built for them.

    `because` says why. It may quote cells, targets and paths, so it must not leave the site.
    """

    def __init__(self, because: BaseException) -> None:
        super().__init__()
        self.because = because


class PoolError(FedkeelError):
    """The statistics of all sites are missing, which says nothing of the data here."""


class OfflinePool:
    """Statistics that are known already: a process that was started again finds them on its disk."""

    def __init__(self, folder: Path, ask: Ask | None = None) -> None:
        """`ask` gets what is not known yet."""
        self._folder, self._ask = folder, ask
        self._step = 0

    def summary(self, own: Summary) -> Summary:
        """Of all sites."""
        facts, tensors = summary_to_wire(own)
        came = self._exchange(Message("pool", {"op": "summary", **facts}, tensors))
        return summary_from_wire(came.facts, came.tensors)

    def total(self, own: Counts) -> Counts:
        """Of all sites."""
        return counts_from_wire(self._exchange(_counts(own)).tensors.get("count"))

    def agree(self, own: Schema) -> Schema:
        """Of all sites."""
        return Schema.from_wire(self._exchange(Message("pool", {"op": "schema", **own.to_wire()})).facts)

    def _exchange(self, message: Message) -> Message:
        path = self._folder / f"pooled-{self._step}.msg"
        if path.exists():
            came = Message.unpack(path.read_bytes())
        elif self._ask is None:
            raise PoolError("the statistics of this run are not here any more; start the run anew")
        else:
            came = self._ask(Message(message.kind, {**message.facts, "step": self._step}, message.tensors))
            with whole(path) as partial:
                partial.write_bytes(came.pack())
        self._step += 1
        return came


def pooled(wanted: Sequence[Message], names: Sequence[str]) -> Message:
    """At the server: what several sites want put together, in their order."""
    ops = {message.facts.get("op") for message in wanted}
    if ops == {"summary"}:
        found = pooled_summary([summary_from_wire(each.facts, each.tensors) for each in wanted], names)
        return Message("pooled", *summary_to_wire(found))
    if ops == {"schema"}:
        return Message("pooled", agree([Schema.from_wire(each.facts) for each in wanted], names).to_wire())
    if ops == {"total"}:
        told = [counts_from_wire(message.tensors.get("count")) for message in wanted]
        return Message("pooled", {}, _counts(pooled_total(told, names)).tensors)
    raise FedkeelError(f"sites want different statistics: {', '.join(sorted(map(str, ops)))}")


def _counts(counts: Counts) -> Message:
    return Message("pool", {"op": "total"}, {"count": torch.from_numpy(np.array(counts))})


class Joining:
    """Loads the data and builds the model in a thread, which waits for the server's statistics."""

    def __init__(self, project: Project, site: Site, folder: Path, turn: threading.Lock) -> None:
        """It has `turn` while it works: who trains at the same time would draw from the same generator of PyTorch."""
        self._turn = turn
        self._out = queue.Queue[Message | Built | BaseException]()
        self._in = queue.Queue[Message | None]()
        self._last: Message | Built | BaseException | None = None
        self._lock = threading.Lock()
        self._pool = OfflinePool(folder, self._wait)
        self._thread = threading.Thread(target=self._work, args=(project, site), name="joining", daemon=True)

    @staticmethod
    def load(project: Project, site: Site, pool: SitePool) -> Built:
        """The data, and the model that fits it; whatever fails in fedkeel's or the user's code is a LoadingError."""
        try:
            loaded = sites.load(site, pool)
            experiment = project.experiment
            counts = None
            if experiment.loss.class_weights == "balanced":
                counts = pool.total(label_totals(fitted(loaded.data, experiment.task, None)))
            return Built.of(experiment, loaded.data, loaded.own, counts, own_tests=loaded.own_tests)
        except PoolError:
            raise
        except (Exception, SystemExit) as error:
            raise LoadingError(error) from error

    def _work(self, project: Project, site: Site) -> None:
        try:
            with self._turn:
                built = self.load(project, site, self._pool)
            self._out.put(built)
        except BaseException as error:
            self._out.put(error)

    def _wait(self, message: Message) -> Message:
        self._out.put(message)
        came = self._in.get()
        if came is None:
            raise PoolError("another run has come meanwhile")
        return came

    def first(self) -> Message | Built:
        """What came of it so far: what the server must pool, or all."""
        with self._lock:
            if self._last is None:
                self._thread.start()
                self._last = self._out.get()
            return self._told()

    def go_on(self, message: Message) -> Message | Built:
        """The same after the server has pooled something; a message that comes twice is answered twice."""
        with self._lock:
            waits = isinstance(self._last, Message) and self._last.facts["step"] == message.facts.get("step")
            if waits:
                self._in.put(message)
                self._last = self._out.get()
            return self._told()

    def give_up(self) -> None:
        """Nobody waits for it any more: its thread ends."""
        self._in.put(None)

    def _told(self) -> Message | Built:
        assert self._last is not None
        if isinstance(self._last, BaseException):
            raise self._last
        return self._last
