"""What a server may ask before training, with a method of the tests' own, against numpy; and what is told of a round.

Its server asks twice, each time a direction `mine * gradient + word`, with a number for each client and a vector for
all; the second question depends on the answers to the first, and the training on those to the second.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedkeel import Experiment, FedkeelError, RoundEnd, run
from fedkeel.local.build import Workshop
from fedkeel.local.settings import ExecutorSettings
from fedkeel.methods import ClientRule, Job, Message, Oracle, ServerState, Updates, method, registry
from fedkeel.methods.fedavg import Average
from fedkeel.methods.job import Sums
from fedkeel.methods.server import Brief, Cohort, Plan
from fedkeel.methods.types import Sends
from fedkeel.params import FlatModel, Layout
from fedkeel.runner.choice import first_orders
from fedkeel.runner.prepare import prepare
from tests.helpers import federation
from tests.helpers.federation import BATCH, EPOCHS, EVERY_EXECUTOR, EXECUTORS, LR, PER_ROUND, ROUNDS, SIZES, Vector
from tests.helpers.tiers import slow_but

D = federation.FEATURES * federation.CLASSES
FLEET: dict[str, Any] = {"rho": 0.5}
OPEN: dict[str, dict[str, Any]] = {"auto": {"kind": "auto"}, "any stack": {"kind": "vectorised"}}


class Told(ClientRule):
    """Goes as it is told, and counts its jobs."""

    def initial(self, w: Tensor, buffers: Tensor) -> Message:
        return {"jobs": torch.zeros(1, dtype=torch.int64)}

    def step(self, job: Job, w: Tensor, oracle: Oracle) -> Tensor:
        return job.received["mine"] * oracle.grad(w) + job.received["word"]

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        return {"jobs": job.kept["jobs"]}, {"jobs": job.kept["jobs"] + 1}

    def sends(self, layout: Layout, received: Message) -> dict[str, Sends]:
        return {"jobs": Sends(1, nbytes=8)}


class Answering(Told):
    """Says how far it came, what it knew and how large it is; what it keeps must not last."""

    def begin(self, job: Job, oracle: Oracle) -> Job:
        return replace(job, sums=Sums.of(("way",), 1, job.start))

    def end(self, job: Job, w: Tensor, oracle: Oracle) -> tuple[Message, Message]:
        away = w - job.start
        job.sums.add("way", 0, away)
        knew = {"jobs": job.kept["jobs"], "secret": job.received["secret"]}
        return {"away": away, "samples": job.samples, **knew}, {"jobs": job.kept["jobs"] + 100}

    def sends(self, layout: Layout, received: Message) -> dict[str, Sends]:
        counts = {name: Sends(1, nbytes=8) for name in ("samples", "jobs")}
        return {"away": Sends(D), "secret": Sends(1), "way": Sends(D, summed=True), **counts}


class Briefly(Answering):
    limit = 1


class Asked(Told):
    long: bool = True

    @property
    def survey(self) -> ClientRule:
        return Answering() if self.long else Briefly()


class Curious(Average):
    long: bool = True

    def send(self, state: ServerState, client: int) -> Message:
        return {"secret": torch.tensor([client + 0.5]).to(state.w)}

    def plan(self, state: ServerState, cohort: Cohort) -> Plan:
        assert cohort.lr.tolist() == pytest.approx([LR] * EPOCHS)
        mine = torch.arange(1.0, len(cohort.samples) + 1)[:, None].to(state.w)
        first = yield Brief({"word": torch.full_like(state.w, 0.1)}, {"mine": mine})
        word = first.sums["way"][0].to(state.w)
        second = yield Brief({"word": word}, {"mine": first.messages["away"].norm(dim=1, keepdim=True)})
        memory = {f"asked_{name}": first.messages[name] for name in ("samples", "jobs", "secret")}
        memory |= {"asked_epochs": second.epochs, "sampled": cohort.samples}
        trained = Brief({"word": second.sums["way"][0].to(state.w)}, {"mine": 1 + second.messages["away"][:, :1]})
        return replace(state, memory=memory), trained

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        after, shares = super().aggregate(state, updates)
        return replace(after, memory={**state.memory, "jobs": updates.messages["jobs"]}), shares

    def report(self, state: ServerState) -> Message:
        return {name: tensor.flatten() for name, tensor in state.memory.items()}


class Watching(Average):
    """Shows the models that came back."""

    def aggregate(self, state: ServerState, updates: Updates) -> tuple[ServerState, Tensor]:
        after, shares = super().aggregate(state, updates)
        return replace(after, memory={"models": updates.w.clone()}), shares

    def report(self, state: ServerState) -> Message:
        return dict(state.memory)


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
    registry.enrol(method("curious", client=Asked, server=Curious, about="asks twice", cite="nobody"))
    registry.enrol(method("rude", client=Told, server=Curious, about="asks clients that do not answer", cite="nobody"))
    registry.enrol(method("watching", client=ClientRule, server=Watching, about="shows models", cite="nobody"))


def away(x: Vector, round: int, client: int, epochs: int, mine: float, word: Vector, steps: int | None) -> Vector:
    w = x.copy()
    for batch in [*federation.batches(round, client, epochs)][:steps]:
        w = w - LR * (mine * federation.gradient(w, *batch) + word)
    return w - x


def planned(x: Vector, jobs: list[tuple[int, int, int]], steps: int | None) -> tuple[list[float], Vector]:
    """(mine, word) of the training, given (round, client, epochs) of every job and how many steps an answer takes."""
    mine, word = [float(row) for row in range(1, len(jobs) + 1)], np.full(D, 0.1)
    first = [away(x, *job, scale, word, steps) for job, scale in zip(jobs, mine, strict=True)]
    mine, word = [float(np.linalg.norm(each)) for each in first], np.sum(first, axis=0)
    second = [away(x, *job, scale, word, steps) for job, scale in zip(jobs, mine, strict=True)]
    return [float(1 + each[0]) for each in second], np.sum(second, axis=0)


def by_hand(ends: list[RoundEnd], whole: bool) -> Vector:
    x = federation.start()
    for end in ends:
        jobs = [(end.round, arrival.client, arrival.epochs) for arrival in end.arrivals]
        mine, word = planned(x, jobs, None if whole else 1)
        deltas = [away(x, *job, scale, word, None) for job, scale in zip(jobs, mine, strict=True)]
        x = x + np.average(deltas, axis=0, weights=[SIZES[client] for _, client, _ in jobs])
    return x


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False], ids=["whole pass", "one step"])
@pytest.mark.parametrize("executor", [*EVERY_EXECUTOR, *OPEN])
def test_two_questions_by_hand(executor: str, whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stragglers answer within the epochs they have; what is left open is chosen after a trial of the plan."""
    monkeypatch.setattr(federation, "EXECUTORS", EXECUTORS | OPEN)
    result, ends = federation.train({"name": "curious", "long": whole}, executor, fleet=FLEET)
    np.testing.assert_allclose(federation.weights(result), by_hand(ends, whole), rtol=0, atol=1e-9)
    jobs = dict.fromkeys(range(federation.N), 0)
    for end in ends:
        clients = federation.chosen(end.round)
        sizes, before = [SIZES[client] for client in clients], [jobs[client] for client in clients]
        assert end.report["asked_samples"] == end.report["sampled"] == sizes
        assert end.report["asked_secret"] == [client + 0.5 for client in clients]
        assert end.report["asked_epochs"] == end.arrivals.columns["epochs"]
        assert end.report["asked_jobs"] == end.report["jobs"] == before, "a survey leaves what clients keep alone"
        jobs |= {client: jobs[client] + 1 for client in clients}
    assert max(jobs.values()) > 1


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "width"), [("float64", 8), ("float32", 4)])
@pytest.mark.parametrize("executor", slow_but(["serial", "stack 3", "processes"], "serial", "stack 3"))
def test_surveys_are_charged_byte_for_byte(executor: str, dtype: str, width: int) -> None:
    result, ends = federation.train("curious", executor, rounds=2, dtype=dtype)
    model, question, sums = D * width, (D + 1) * width, D * width
    answer = D * width + 8 + 8 + width + sums  # away, samples, jobs, secret
    for arrival in (arrival for end in ends for arrival in end.arrivals):
        assert arrival.bytes_down == model + width + 3 * question
        assert arrival.bytes_up == model + 8 + 2 * answer
    assert result.summary["bytes_up"] == 2 * PER_ROUND * (model + 8 + 2 * answer)
    assert result.summary["bytes_down"] == 2 * PER_ROUND * (model + width + 3 * question)


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("batch", [BATCH, 10, "full"])
@pytest.mark.parametrize("fleet", [{}, FLEET])
def test_everybody_waits_for_the_slowest_answer_to_each_question(
    whole: bool, batch: int | str, fleet: dict[str, Any]
) -> None:
    _, ends = federation.train({"name": "curious", "long": whole}, fleet=fleet, local={"batch_size": batch})
    second = 10 / (np.mean(SIZES) * EPOCHS)  # a sample
    now = 0.0
    for end in ends:
        work = []
        for arrival in end.arrivals:
            one = arrival.samples if batch == "full" else min(int(batch), arrival.samples)
            work.append(arrival.samples * EPOCHS if whole else one)
        for arrival in end.arrivals:
            assert arrival.dispatched == pytest.approx(now)
            assert arrival.arrived - now == pytest.approx(second * (2 * max(work) + arrival.samples * EPOCHS))
        now = max(arrival.arrived for arrival in end.arrivals)
        assert end.virtual_seconds == pytest.approx(now)


def test_clients_that_answer_no_survey_cannot_be_asked() -> None:
    with pytest.raises((FedkeelError, AssertionError)):
        federation.train("rude")


def test_the_first_orders_are_of_the_kind_that_the_plan_makes() -> None:
    """For an executor to be chosen by: a trial asks once and takes one step for an answer to all questions."""
    asked, data, module = prepare(experiment(algorithm="curious"), federation.data(), federation.net())
    shop = Workshop(module, data, asked.algorithm.rules()[0], asked.local, asked.seed)
    alone = shop.executor(ExecutorSettings(kind="serial", stack=0, channels_last=False))
    orders = first_orders(asked, data, FlatModel(module), alone)
    mine, word = planned(federation.start(), [(1, client, EPOCHS) for client in federation.chosen(1)], 1)
    for order, client, scale in zip(orders, federation.chosen(1), mine, strict=True):
        assert (order.client, order.survey) == (client, False)
        assert order.received["secret"].tolist() == [client + 0.5]
        assert order.received["mine"].shape == np.shape([scale])
        assert order.received["word"].shape == word.shape


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def experiment(**settings: Any) -> Experiment:
    local = {"epochs": EPOCHS, "batch_size": BATCH, "lr": LR}
    known = {"seed": federation.SEED, "rounds": ROUNDS, "per_round": PER_ROUND, "local": local, "dtype": "float64"}
    return Experiment(**{**known, **settings})


@pytest.mark.slow
@pytest.mark.parametrize("executor", slow_but(["serial", "stack 3", "processes"], "serial", "stack 3"))
def test_local_accuracy_is_that_of_the_models_that_came_back(executor: str, tmp_path: Path) -> None:
    ends: list[RoundEnd] = []
    asked = experiment(
        algorithm="watching", evaluate_local=True, executor=EXECUTORS[executor], fleet=FLEET, evaluate_every=2, rounds=5
    )
    run(asked, tmp_path / "run", data=federation.data(), model=federation.net(), progress=ends.append)
    history = rows(tmp_path / "run" / "history.jsonl")
    assert [row["round"] for row in history] == [2, 4, 5]
    x, y = federation.clients()[3]
    for row in history:
        models = np.array(ends[row["round"] - 1].report["models"]).reshape(
            PER_ROUND, federation.CLASSES, federation.FEATURES
        )
        scores = np.array([((x @ model.T).argmax(axis=1) == y).mean() for model in models])
        mean = scores.sum() / PER_ROUND
        expected = {
            "mean": mean,
            "std": np.sqrt(((scores - mean) ** 2).sum() / PER_ROUND),
            "lowest": min(scores),
            "highest": max(scores),
        }
        assert row["local_accuracy"] == pytest.approx(expected, abs=1e-12)
    assert any(row["local_accuracy"]["std"] > 0 for row in history)


def test_local_accuracy_is_absent_unless_asked_for(tmp_path: Path) -> None:
    result = run(experiment(executor="serial"), tmp_path / "run", data=federation.data(), model=federation.net())
    assert all("local_accuracy" not in row for row in rows(tmp_path / "run" / "history.jsonl"))
    assert all(row.local_accuracy is None for row in result.history)


def test_rounds_are_told_one_by_one_with_what_the_server_reports(tmp_path: Path) -> None:
    """Also those in which nothing is tested."""
    ends: list[RoundEnd] = []
    asked = experiment(algorithm="curious", evaluate_every=3, executor="serial")
    run(asked, tmp_path / "run", data=federation.data(), model=federation.net(), progress=ends.append)
    told = rows(tmp_path / "run" / "rounds.jsonl")
    counts = {"arrived": 3, "lost": 0, "refused": 0}
    assert told == [{"round": end.round, "train_loss": end.train_loss, **counts, **end.report} for end in ends]
    assert [row["round"] for row in told] == [*range(1, ROUNDS + 1)]
    assert told[0]["sampled"] == [SIZES[client] for client in federation.chosen(1)]
    assert [row["round"] for row in rows(tmp_path / "run" / "history.jsonl")] == [3, 4]
