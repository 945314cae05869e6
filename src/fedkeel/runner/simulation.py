"""A simulated run: the server's core and the simulated world, driven round by round."""

from __future__ import annotations

from torch import Tensor

from fedkeel.config.experiment import Experiment
from fedkeel.data.federated import FederatedData, Held
from fedkeel.local.executor import Executor, Score
from fedkeel.local.work import whole_jobs
from fedkeel.params import FlatModel
from fedkeel.record.standing import Rest
from fedkeel.runner.core import first_kept, held_classes, new_core
from fedkeel.runner.identity import digest
from fedkeel.runner.run import OUTPUTS, STATE, Models, Run, Tests
from fedkeel.runner.scores import client_scores, global_scores, local_accuracy, mean_score
from fedkeel.world.desk import Desk
from fedkeel.world.fleet.profile import Fleet
from fedkeel.world.flights import Begin, End, Flight, Request, Stray
from fedkeel.world.simulated import Simulated


class Simulation(Run):
    """A run in the simulated world."""

    classes = (*STATE, Begin, End, Flight, Request, Stray)

    def __init__(self, experiment: Experiment, data: FederatedData, model: FlatModel, executor: Executor) -> None:
        super().__init__(experiment, data, new_core(experiment, data.sizes, model, held_classes(data)))
        self.world: Simulated = Simulated(
            self.core,
            Desk(executor, experiment.max_loss),
            Fleet.of(experiment.fleet, *whole_jobs(data.sizes, experiment.local), experiment.seed),
            data.sizes,
            experiment.faults,
            experiment.local,
            experiment.seed,
            first=first_kept(experiment, model),
        )

    @property
    def executor(self) -> Executor:
        """Who trains and tests."""
        return self.world.desk.executor

    def release(self) -> None:
        """Let go of the executor: what is kept of a run needs no workers."""
        del self.world.desk.executor

    def identity(self) -> str:
        """Of the model, the devices and the data."""
        return digest(self.data, self.layout, self.fleet)

    def test(self, models: Models) -> Tests:
        """By the executor, on the test set; where there is no global model, client by client."""
        asked, has_global = self.experiment, self.core.model.client_rule.global_model
        local = local_accuracy(models, self.executor.evaluate) if models else None
        validation = outputs = None
        if not has_global:
            clients = self.client_scores()
            score = mean_score(clients)
            if self.data.validation is not None:
                validated = self.client_scores(on="validation")
                validation = mean_score(validated) if any(validated) else None
            return Tests(score, validation, clients if asked.evaluate_clients else None, None, local)
        if asked.evaluate_classes or asked.evaluate_clients:
            outputs = self.outputs()
        score = self.executor.evaluate(*self.evaluated)
        if self.data.validation is not None:
            validation = self.executor.evaluate(*self.evaluated, on="validation")
        by_class = self.by_class(outputs) if asked.evaluate_classes and outputs is not None else None
        return Tests(
            score, validation, self.client_scores(outputs) if asked.evaluate_clients else None, by_class, local
        )

    def outputs(self) -> Tensor | None:
        """The global model's outputs for the whole test set, if there is one and they are not too many."""
        y = self.data.test.y
        if not self.core.model.client_rule.global_model or y.numel() * self.data.classes > OUTPUTS:
            return None
        return self.executor.predict(*self.evaluated)

    @property
    def fleet(self) -> Fleet:
        """The devices."""
        return self.world.flights.fleet

    def rest(self) -> Rest:
        """What came after the last round; jobs that are still on their way are given up, so ask once."""
        self.world.flights.separate()
        core, flights = self.core, self.world.flights.by_client
        by_job = sorted(core.at_work.sent.values(), key=lambda sent: sent.order.job)
        core.leave([(sent, flights[sent.order.client]) for sent in by_job])
        return Rest(core.log.unfinished, core.log.refused)

    def own(self, client: int) -> tuple[Tensor, Tensor]:
        """A client's own model, (weights, buffers): the global one, unless the method has others."""
        model, kept = self.core.model, self.world.desk.kept.get(client, self.world.first)
        return model.client_rule.own(model.evaluated, model.buffers, kept)

    @property
    def took_part(self) -> list[int]:
        """The clients that keep something of an earlier job."""
        return sorted(self.world.desk.kept)

    def client_scores(self, outputs: Tensor | None = None, on: Held = "test") -> list[Score | None]:
        """Every client's own model on its own rows; `outputs` are the global model's for the test set."""
        clients, seed = range(len(self.data)), self.experiment.seed
        if outputs is not None:
            return global_scores(clients, outputs, self.task, self.data, seed)
        return client_scores(clients, map(self.own, clients), self.executor.evaluate, self.data, seed, on)

    def client_rows(self) -> list[int]:
        """How many test rows each client has, or is estimated by."""
        return [len(self.data.test_share(client, self.experiment.seed)) for client in range(len(self.data))]
