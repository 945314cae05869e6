"""A run on real machines: the server's core and the remote world, driven round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.data.federated import Held
from fedkeel.data.partition import Assignment
from fedkeel.data.statistics import MOST_CLIENTS, describe_labels, describe_sizes
from fedkeel.deploy.journal import Journal
from fedkeel.deploy.prepared import Built
from fedkeel.errors import AbsentError, InputError, shown
from fedkeel.local.evaluation import Evaluator
from fedkeel.local.executor import Score
from fedkeel.local.work import steps
from fedkeel.record.standing import Rest
from fedkeel.runner.core import first_kept, new_core
from fedkeel.runner.run import OUTPUTS, Models, Run, Tests
from fedkeel.runner.scores import local_accuracy, mean_score
from fedkeel.server import events as ev
from fedkeel.wire.orders import Columns, Order
from fedkeel.world.remote.expected import MOST_HEADER, Reader
from fedkeel.world.remote.limits import Limits
from fedkeel.world.remote.message import Message
from fedkeel.world.remote.remote import Remote
from fedkeel.world.remote.roster import Roster
from fedkeel.world.remote.transport import Transport

LARGEST = 1e300
"""Of a metric."""
GOODBYE = 10.0
"""Seconds that the server waits at the end until the sites have heard of it."""
MOST_STEPS = 10_000_000
"""Of a job, where each has another rate: the server may go through them one by one (`methods.path`)."""
MOST_ROWS = 100_000_000
"""Rows of all sites, beyond which their labels are not described: that takes memory for each of them."""


class Deployment(Run):
    """A run whose clients are sites behind a transport."""

    saved = (*Run.saved, "journal_bytes")
    world: Remote

    def __init__(self, built: Built, transport: Transport, roster: Roster, limits: Limits) -> None:
        """`built` has stand-ins for the sites' data."""
        samples = first_sizes(roster)
        core = new_core(built.experiment, samples, built.flat, self._classes_held, persists=True)
        super().__init__(built.experiment, built.data, core)
        self._built, self._roster, self._samples = built, roster, samples
        self._first_samples = samples.tolist()
        """With which the server was built; `samples` changes as sites join."""
        self._patience = limits.away
        self._journal: Journal | None = None
        self.journal_bytes = 0
        """Of the events that were written down."""
        trainer, first = built.trainer(), first_kept(built.experiment, built.flat)

        def trial(order: Order) -> Columns:
            return trainer([replace(order, client=0, kept=first)], 1, encode=True)

        def expected_steps(client: int, epochs: int) -> int:
            return int(steps(samples[[client]], epochs, built.experiment.local)[1][0])

        client_rule = core.model.client_rule
        most = MOST_STEPS if built.experiment.local.curve else None
        reader = Reader(roster.run, client_rule, core.model.layout, built.workshop.wire, trial, expected_steps, most)
        self.world = Remote(core, transport, roster, reader, limits, samples)
        self._evaluator = None
        if built.data.test_rows is None and client_rule.global_model:
            self._evaluator = Evaluator(built.workshop.module, built.data, built.experiment.objective)
        for name in ("evaluate_local", "evaluate_classes") if self._evaluator is None else ():
            if getattr(built.experiment, name):
                raise InputError(
                    f"{name} needs a test set at the server; give it one (`test` in data.py), or remove it"
                )
        if self._evaluator is None:
            self._check_rows("test")
        if self._validates:
            self._check_rows("validation")
        self._scores: dict[tuple[int, Held], list[Score | None]] = {}
        """What sites told of the newest model, by its version."""

    def keep_journal(self, journal: Journal) -> None:
        """Write all events down from now on; those after the last checkpoint come again."""
        journal.cut(self.journal_bytes)
        if not journal.size:
            journal.begin(self._first_samples)
        self._journal, self.journal_bytes = journal, journal.size

    def _tell(self, event: ev.Event) -> list[ev.Command]:
        if self._journal is not None:
            self._journal.add(event, self._samples)
            self.journal_bytes = self._journal.size
        before = dict(self.core.ledger.turned_away)
        commands = super()._tell(event)
        if isinstance(event, ev.Arrived) and event.order is not None:  # not a copy, and not too late
            refused = [why for why, count in self.core.ledger.turned_away.items() if count > before.get(why, 0)]
            if not refused:
                self.world.taken_in(event.client)
            elif not event.objection:  # otherwise the world has seen to it
                self.world.put_aside(event.client, f"its upload is refused ({refused[0]})")
        return commands

    def _classes_held(self) -> NDArray[np.int64]:
        """As sites told; all classes of those that did not."""
        counts = [self._labels(client) for client in range(len(self._roster.sites))]
        return np.array([self.data.classes if each is None else np.count_nonzero(each) for each in counts])

    def _labels(self, client: int) -> list[int] | None:
        member = self._roster.members.get(client)
        return None if member is None else member.facts.get("labels")

    @property
    def server_tests(self) -> bool:
        """Whether the server has a test set; otherwise sites test."""
        return self._evaluator is not None

    def identity(self) -> str:
        """Of the model, the method and the sites."""
        return sha256(repr((self._built.layout_digest, [*self._roster.sites])).encode()).hexdigest()

    def describe_labels(self) -> dict[str, Any]:
        """How many samples sites have; of which classes, if all tell that."""
        names = {"client_names": [*self._roster.sites][:MOST_CLIENTS]}
        sizes = self._roster.samples
        told = [self._labels(client) for client in range(len(sizes))]
        known = [each for each in told if each is not None]
        if len(known) < len(told) or [sum(each) for each in known] != sizes.tolist() or sizes.sum() > MOST_ROWS:
            return describe_sizes(sizes) | names
        labels = np.concatenate([np.repeat(np.arange(len(each)), each) for each in known])
        rows = Assignment(np.arange(len(labels)), np.cumsum([0, *sizes.tolist()]))
        return describe_labels(labels, rows, self.data.classes) | names

    def test(self, models: Models) -> Tests:
        """On the server's test set, or by the sites on their own rows: the mean over all rows."""
        asked = self.experiment
        validation = None
        if self._validates:
            validation = self._together(self._some_scores("validation"), "validation")
        if self._evaluator is None:
            clients = self._some_scores("test")
            by = [client for client, score in enumerate(clients) if score is not None]
            return Tests(self._together(clients, "test"), validation, clients, by=by)
        score = self._evaluator.score(*self.evaluated)
        local = local_accuracy(models, self._evaluator.score) if models else None
        outputs = self.outputs() if asked.evaluate_classes else None
        by_class = None if outputs is None else self.by_class(outputs)
        return Tests(score, validation, self.client_scores() if asked.evaluate_clients else None, by_class, local)

    @property
    def _validates(self) -> bool:
        """Whether sites hold out validation rows, if they have enough."""
        return any(member.facts["validates"] for member in self._roster.members.values())

    def _check_rows(self, on: Held) -> None:
        """Refuse a run in which all sites are there, and none has such rows."""
        sites = range(len(self._roster.sites))
        if len(self._roster.members) == len(sites) and not any(self._rows(client, on) for client in sites):
            raise self._no_rows(on)

    def _no_rows(self, on: Held) -> InputError:
        if on == "validation":  # a share that every site rounds to nothing, as it does not know of the others' rows
            return InputError("no site has validation rows, as each has too few; raise dataset.validation or remove it")
        tests = self.core.model.client_rule.global_model
        server = ", or the server a test set (a function `test` in data.py)" if tests else ""
        return InputError(f"no site has test rows; raise dataset.test, give sites test rows{server}")

    def _some_scores(self, on: Held) -> list[Score | None]:
        """What sites measure; if none answers, they are asked again for a while."""
        begun = self.world.now
        while not any(scores := self.client_scores(on=on)) and self.world.now - begun < self._patience:
            self._check_rows(on)
            del self._scores[self.core.model.version, on]
            self.world.wait()
        return scores

    def _together(self, scores: Sequence[Score | None], on: Held) -> Score:
        """The mean of what sites measured, by their rows; without a global model, each site counts alike."""
        known = [(client, score) for client, score in enumerate(scores) if score is not None]
        if not known:
            if not any(self._rows(client, on) for client in range(len(scores))):
                raise self._no_rows(on)
            raise AbsentError(
                f"no site has tested the model on its {on} rows for {self._patience:g} seconds; see to their nodes, "
                "then resume the run"
            )
        if not self.core.model.client_rule.global_model:
            return mean_score([score for _, score in known])
        rows = np.array([self._rows(client, on) for client, _ in known], dtype=np.float64)
        metrics = {}
        for name in known[0][1].metrics:
            values = np.array([score.metrics[name] for _, score in known])
            defined = ~np.isnan(values)
            metrics[name] = float(np.average(values[defined], weights=rows[defined])) if defined.any() else float("nan")
        return Score(float(np.average([score.loss for _, score in known], weights=rows)), metrics)

    def _rows(self, client: int, on: Held) -> int:
        member = self._roster.members.get(client)
        return 0 if member is None else int(member.facts["tests" if on == "test" else "validation"])

    def client_scores(self, outputs: Tensor | None = None, on: Held = "test") -> list[Score | None]:
        """What each site measures on its own rows; nothing of those that do not answer."""
        key = self.core.model.version, on
        if key not in self._scores:
            facts = {
                "run": self._roster.run,
                "session": self._roster.session,
                "on": on,
                "after": [self.world.packer.after.get(client, 0) for client in range(len(self._roster.sites))],
            }
            body = Message("evaluate", facts, self.world.packer.model(*self.evaluated)).pack()
            asked = [
                c for c in range(len(self._roster.sites)) if self._rows(c, on) and self._roster.node(c) is not None
            ]
            answers = self.world.ask(dict.fromkeys(asked, lambda: body), MOST_HEADER)
            scores = [self._score(client, answers.get(client)) for client in range(len(self._roster.sites))]
            if answers and all(map(self._diverged, answers.values())):  # all agree that the model is no good
                nothing = dict.fromkeys(self.task.names, float("nan"))
                scores = [Score(float("nan"), nothing) if client in answers else None for client in range(len(scores))]
            self._scores = {each: told for each, told in self._scores.items() if each[0] == key[0]} | {key: scores}
        return self._scores[key]

    def _score(self, client: int, answer: Message | None) -> Score | None:
        """Of an answer that makes sense."""
        if answer is None or (answer.kind == "scores" and answer.facts.get("rows") == 0):
            return None
        told, loss = answer.facts.get("metrics"), answer.facts.get("loss")
        known = isinstance(told, dict) and set(told) == set(self.task.names)
        if self._diverged(answer):
            self._roster.tell(f"{self._roster.sites[client]} is left out of the test: its loss is {shown(loss)}")
            return None
        if answer.kind == "scores" and known and loss is not None and _finite(loss):
            assert isinstance(told, dict)
            if all(value is None or _finite(value) for value in told.values()):
                values = {name: float("nan") if told[name] is None else float(told[name]) for name in self.task.names}
                return Score(float(loss), values)
        self._roster.tell(f"{self._roster.sites[client]} tested the model, but what it told is no use: {shown(told)}")
        return None

    def _diverged(self, answer: Message) -> bool:
        """Whether a site says that the model is no good; one site alone does not decide that."""
        loss = answer.facts.get("loss")
        return isinstance(loss, float) and not loss <= self.experiment.max_loss

    def say_complete(self) -> None:
        """Tell the sites that are connected that the run is over; those that are busy may not hear it."""
        body = Message("complete", self._roster.whose).pack()
        there = [client for client in self._roster.members if self._roster.node(client) is not None]
        self.world.mail.ask(dict.fromkeys(there, lambda: body), dict.fromkeys(there, GOODBYE), MOST_HEADER)

    def client_rows(self) -> list[int]:
        """How many test rows each site has."""
        return [self._rows(client, "test") for client in range(len(self._roster.sites))]

    def outputs(self) -> Tensor | None:
        """For the server's test set, if there is one."""
        if self._evaluator is None or self.data.test.y.numel() * self.data.classes > OUTPUTS:
            return None
        return self._evaluator.predict(*self.evaluated)

    @property
    def clients_have_tests(self) -> bool:
        """As the sites told."""
        return all(member.facts["own_tests"] for member in self._roster.members.values())

    def rest(self) -> Rest:
        """Jobs that are still out are given up."""
        core, trips = self.core, self.world.give_up()
        by_job = sorted(core.at_work.sent.values(), key=lambda sent: sent.order.job)
        core.leave([(sent, trips[sent.order.client]) for sent in by_job if sent.order.client in trips])
        return Rest(core.log.unfinished, core.log.refused)

    def own(self, client: int) -> tuple[Tensor, Tensor]:
        """Clients' own models stay on their sites."""
        return self.evaluated

    @property
    def took_part(self) -> list[int]:
        """None: clients' own models are on their sites."""
        return []


def first_sizes(roster: Roster) -> NDArray[np.int64]:
    """[N], samples of the sites when the run begins; one that is not there yet is taken to have the others' mean.

    Methods compute with all sizes at the start. A site without samples would not count among the clients.
    """
    sizes = roster.samples
    there = sizes > 0
    sizes[~there] = max(1, round(sizes[there].mean())) if there.any() else 0
    return sizes


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < LARGEST
