"""The server: a function from events to commands, and its state. It knows no clock, no data, no files, no processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkeel.errors import FedkeelError
from fedkeel.methods.job import Fresh
from fedkeel.methods.server import View
from fedkeel.server import events as ev
from fedkeel.server.books import Books
from fedkeel.server.clients import AtWork, Dispatch, Landed, Many, Sent, Single
from fedkeel.server.columns import merging, patch
from fedkeel.server.gate import Gate, Refusal
from fedkeel.server.ledger import Ledger
from fedkeel.server.log import Log, divergence
from fedkeel.server.model import GlobalModel
from fedkeel.server.paces import Pace
from fedkeel.server.stateful import Stateful
from fedkeel.server.trips import Trip
from fedkeel.server.waves import Drawing, JobSettings, Wave, Waves
from fedkeel.wire.orders import Trained, assembled
from fedkeel.wire.sizes import Sizes

STARVED = 1000
"""A run is given up after this many rounds in a row without a result, or dispatches without a client. Without rounds,
it is this many jobs, or ten times the number of clients if that is more."""


class Core(Stateful):
    """Takes events, returns commands. Between two rounds, its snapshot is all that it remembers."""

    saved = ("round", "over", "_tested", "_in_vain", "_now")
    parts = ("model", "gate", "ledger", "at_work", "log", "waves")

    def __init__(
        self,
        settings: JobSettings,
        pace: Pace,
        model: GlobalModel,
        gate: Gate,
        sizes: Sizes,
        samples: NDArray[np.int64],
        draw: Drawing,
    ) -> None:
        """`samples` [N] are all clients'."""
        self._settings, self.pace, self.model, self.gate, self._sizes = settings, pace, model, gate, sizes
        self._samples = samples
        self.waves = Waves(settings, pace.wanted, model, sizes, samples, draw)
        self.ledger = Ledger()
        self.log = Log()
        self._books = Books(self.ledger, self.log, samples, settings)
        self.at_work = AtWork()
        self.round = 1
        """The current round."""
        self.over = False
        """Whether the run is over; what happens after that changes nothing."""
        self._in_vain = 0
        self._tested = False
        """Whether the model after the last round was tested."""
        self._now = 0.0
        self._arrived: list[Single | Many] = []
        """Jobs of this round whose uploads wait to be taken in."""
        self._count = 0
        """How many uploads of this round have arrived: they wait, or are taken in."""
        self._taking: Landed | None = None
        """The jobs whose content was asked for."""
        self._again = self._cancelled = False
        self._handlers: dict[type, Callable[[Any], list[ev.Command]]] = {
            ev.Wake: self._wake,
            ev.Answered: lambda event: self._dispatch(self.waves.go_on(event.answers)),
            ev.Unanswered: self._ask_others,
            ev.Asked: self._ask,
            ev.Arrived: self._arrive,
            ev.ArrivedTogether: self._arrive_together,
            ev.Delivered: self._take,
            ev.Lost: self._lose,
            ev.TimeUp: self._time_up,
        }

    def on(self, event: ev.Event) -> list[ev.Command]:
        """What an event leads to, to be carried out in this order."""
        if self._taking or self.waves.asked is not None:
            waits = (ev.Delivered,) if self._taking else (ev.Answered, ev.Unanswered)
            if not isinstance(event, waits):
                told = type(event).__name__
                raise FedkeelError(f"the world must answer with {waits[0].__name__} before anything else; got {told}")
        if self.over:
            return []
        self._now = event.time
        return self._handlers[type(event)](event)

    @property
    def ahead(self) -> int:
        """How many more uploads will be taken in after the next one, as far as is known."""
        return self.pace.ahead(self._count)

    @property
    def patience(self) -> int:
        """How many uploads a world may report with one event."""
        return self.pace.patience(self._count)

    # Dispatches.

    def _wake(self, event: ev.Wake) -> list[ev.Command]:
        """Draw clients and prepare their jobs."""
        due, free = self.pace.due(len(self.at_work)), event.free
        if due:
            if free is None and self.at_work:
                free = np.ones(len(self._samples), dtype=np.bool_)
                free[self.at_work.clients] = False
            clients, draws = self.waves.draw(due, free)
            if len(clients):
                return self._dispatch(self.waves.begin(clients, draws, due, self.round, self.ledger.updates))
            if not self.at_work:
                self._waited_in_vain(STARVED)
        return [*self.pace.after_dispatch(0, due, len(self.at_work))]

    def _dispatch(self, step: ev.Survey | Wave) -> list[ev.Command]:
        """Ask clients first, or send them their jobs."""
        if isinstance(step, ev.Survey):
            return [step]
        orders, down = step.orders, step.down
        self.ledger.bytes_down += int(down.sum())
        self.ledger.bytes_up += int(step.up.sum())
        self.at_work.begin(Dispatch(orders, step.draws, down.copy(), step.up))
        after = self.pace.after_dispatch(len(orders), step.due, len(self.at_work))
        return [ev.Send(orders, down, step.uploads, self._settings.within), *after]

    def _ask_others(self, event: ev.Unanswered) -> list[ev.Command]:
        """Some clients were lost in a survey: plan again with the others."""
        due, step = self.waves.due, self.waves.without(event.clients)
        if step is not None:
            return self._dispatch(step)
        self._waited_in_vain(STARVED)
        return [*self.pace.after_dispatch(0, due, len(self.at_work))]

    # What clients ask for and send.

    def _ask(self, event: ev.Asked) -> list[ev.Command]:
        """The newest model, if it is newer than what the client has."""
        sent, model = self.at_work.find(event.client, event.job), self.model
        if sent is None or model.version <= sent.order.version:
            return [ev.Answer(event.client)]
        self.at_work.charge(event.client, self._sizes.down)
        self.ledger.bytes_down += self._sizes.down
        return [ev.Answer(event.client, Fresh(model.state.w, model.buffers, model.version), self._sizes.down)]

    def _arrive(self, event: ev.Arrived) -> list[ev.Command]:
        """An upload waits for the others, is collected at once, or is refused."""
        jobs, row = self.at_work.get(event.client) or (None, 0)
        expected = None if jobs is None else jobs.claim(row)
        refusal = self.gate.claim(event.client, event.job, event.version, expected, self.model.version)
        if refusal is None and event.objection:
            refusal = Refusal("malformed", event.objection)
        order = event.order or (None if jobs is None or refusal is not None else jobs.orders[row])
        over = order is not None and expected is not None and order.job == expected.job
        if over:
            self.at_work.end(event.client)
        if refusal is None and order is not None and event.upload is not None:
            refusal = self.gate.judge([order], event.upload, altered=True)[0]
        if refusal is not None:
            self._books.turn_away(event, jobs.sent(row) if over and jobs is not None else None, refusal, self._now)
            return self._turn_to_next() if over else []
        assert jobs is not None
        assert order is not None
        assert event.trip is not None
        return self._land(Single(event, jobs, row, order, event.trip), 1)

    def _arrive_together(self, event: ev.ArrivedTogether) -> list[ev.Command]:
        """The same for many uploads; one by one if the gate refuses some."""
        orders, rows, patience = event.uploads.orders, event.rows, self.patience
        if len(rows) > patience:
            raise FedkeelError(f"the world must report at most {patience} uploads together; got {len(rows)}")
        clients = orders.client[rows]
        jobs, sent = self.at_work.expected(clients.tolist())
        claimed = orders.job[rows], orders.version[rows]
        if jobs is None or not self.gate.claims(clients, claimed, jobs.claims(sent), self.model.version):
            commands = []
            for single in event.one_by_one():
                self._now = single.time
                commands += self._arrive(single)
            return commands
        self.at_work.end(*clients.tolist())
        return self._land(Many(event, jobs, sent), len(rows))

    def _land(self, landed: Single | Many, count: int) -> list[ev.Command]:
        """Uploads wait for the others, or are collected at once."""
        if self.pace.at_once:
            return self._collect(Landed.of([landed]))
        self._arrived.append(landed)
        self._count += count
        return self._after()

    def _lose(self, event: ev.Lost) -> list[ev.Command]:
        sent = self.at_work.find(event.client, event.job)
        if sent is None:  # it was over before
            return []
        self.at_work.end(event.client)
        self._books.lose(event, sent)
        return self._turn_to_next()

    def _after(self) -> list[ev.Command]:
        """What follows the end of a job: the end of the round, or another client's turn."""
        enough = self._count >= self.pace.wanted
        if not self.pace.in_rounds:
            return [*self.pace.after_job(), *(self._end_round() if enough else [])]
        if len(self.at_work):
            cancel = enough and not self._cancelled
            self._cancelled = enough
            return [ev.Cancel(self.at_work.clients, ev.NOT_NEEDED)] if cancel else []
        return self._collect(Landed.of(self._arrived)) if self._arrived else self._end_round()

    # Uploads.

    def _collect(self, landed: Landed, again: bool = False) -> list[ev.Command]:
        """Get the contents of the uploads that are taken in now."""
        come = len(landed.uploads) == len(landed)
        if self._settings.mean is not None and not come:
            landed = landed.with_shares(self._samples, self._settings.mean)
        self._taking, self._again = landed, again
        if come:
            return self._take(ev.Delivered(self._now, assembled(landed.uploads)))
        return [ev.Collect(landed.orders, again)]

    def _take(self, event: ev.Delivered) -> list[ev.Command]:
        """Take uploads in: one at once, or those of a round together."""
        landed, upload, self._taking = self._taking, event.upload, None
        assert landed is not None
        refused = set() if self._again else self._turned_away(landed, upload)
        if self.pace.at_once:
            return self._receive(landed, upload) if not refused else self._turn_to_next()
        if refused:
            rows = [row for row in range(len(landed)) if row not in refused]
            landed = landed.pick(np.array(rows, dtype=np.int64))
            self._count = len(rows)
            if rows and upload.sums:  # sums over all clients must be computed again without those that were refused
                return self._collect(landed, again=True)
            upload = upload.pick(rows)
        if len(landed):
            self._aggregate(landed, upload)
        return self._end_round()

    def _turn_to_next(self) -> list[ev.Command]:
        """A job ended without a result; in rounds, it matters only whether all do."""
        if not self.pace.in_rounds:
            self._waited_in_vain(max(STARVED, 10 * len(self._samples)))
        return self._after()

    def _turned_away(self, landed: Landed, upload: Trained) -> set[int]:
        """The rows that the gate refuses."""
        refusals = self.gate.judge(landed.orders, upload)
        if refusals.count(None) == len(refusals):
            return set()
        refused = {row: refusal for row, refusal in enumerate(refusals) if refusal is not None}
        for row, refusal in refused.items():
            self._books.turn_away(landed.event(row), landed.sent(row), refusal, self._now)
        return {*refused}

    def _receive(self, landed: Landed, upload: Trained) -> list[ev.Command]:
        """Take in one update at once."""
        order, trips, version = landed.orders[0], landed.trips, self.model.version
        view = View(
            time=self._now,
            version=version,
            round=self.round,
            client=order.client,
            start_version=order.version,
            fresh_version=None if order.fresh is None else order.fresh.version,
            seconds=self._now - trips.dispatched[0],
            busy=self.at_work.versions,
            held=self.at_work.held,
        )
        receipt = self.model.receive(landed, upload, view)
        self.ledger.refused += not receipt.accepted
        said = upload.messages if trips.merged[0] is not None else {}
        recorded = {name: float(said[name][0]) for name in self.model.client_rule.recorded if name in said}
        more = merging(order, trips) | {
            "accepted": [receipt.accepted],
            "notes": [{**recorded, **receipt.notes} or None],
        }
        self._books.take_in(landed, upload, [receipt.weight], version, more)
        if receipt.earlier:
            patch(self.log.told.columns["weight"], receipt.earlier)
        self._count += 1
        self._in_vain = 0
        interrupt = [ev.Interrupt(receipt.interrupt)] if receipt.interrupt else []
        return [*interrupt, *self._after()]

    def _aggregate(self, landed: Landed, upload: Trained) -> None:
        """The new model from the updates of a round with a barrier."""
        version = self.model.version
        self._books.take_in(landed, upload, self.model.aggregate(landed, upload), version, {})

    # Rounds.

    def _end_round(self, final: bool = False) -> list[ev.Command]:
        """The result of a round; `final` where time is up in the middle of it."""
        settings, log = self._settings, self.log
        if settings.persists and not (final or self._count):
            return self._repeat()
        last = final or self.round >= settings.rounds
        if last and not final:
            self.model.close()
        self._tested = last or self.round % settings.evaluate_every == 0
        if not self.model.finite:
            raise divergence(self.round, "the global model holds NaN or infinite numbers", log.told, settings.lr)
        over = log.end_round(self.round, self._now, self.model.report(), self._tested)
        if self._count:
            self._in_vain = 0
        elif not final and self.pace.in_rounds:
            self._waited_in_vain(STARVED)
        self._arrived, self._count, self._cancelled = [], 0, False
        self.over = self.over or self.round >= settings.rounds
        self.round += 1
        wake = [ev.WakeMe(ev.When.NOW)] if self.pace.in_rounds and not self.over else []
        return [*wake, over]

    def _repeat(self) -> list[ev.Command]:
        """No update came: the same round begins again."""
        self._arrived, self._cancelled = [], False
        return [ev.WakeMe(ev.When.NOW)]

    def _time_up(self, event: ev.TimeUp) -> list[ev.Command]:
        """The current model, if it was not reported yet; an unfinished round with a barrier is dropped."""
        if not self.pace.at_once:
            jobs = Landed.of(self._arrived).one_by_one() if self._arrived else []
            self.leave(sorted(jobs, key=lambda job: (job[1].arrives, job[0].order.client)))
            self._arrived, self._count = [], 0
        self.over = True
        return self._end_round(final=True) if self.model.close() or self._count or not self._tested else []

    def leave(self, jobs: Sequence[tuple[Sent, Trip]]) -> None:
        """These jobs are still in flight when the run ends."""
        self._books.leave(jobs, self._now)

    def _waited_in_vain(self, limit: int) -> None:
        self._in_vain += 1
        if self._in_vain > limit and not self._settings.persists:
            what = "rounds" if self.pace.in_rounds else "jobs"
            raise FedkeelError(
                f"the server starves: {limit} {what} in a row brought no update, or no device was there, until "
                f"{self._now:g} virtual seconds; devices fail, are off or miss the deadline (change fleet.dropout, "
                "fleet.availability or schedule.deadline_seconds), or the gate refuses their uploads (see "
                "refused.jsonl)"
            )
