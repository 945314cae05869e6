"""What a site does for one run: trains, answers surveys, tests, and keeps its state."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fedkeel
from fedkeel import streams
from fedkeel.deploy import alike
from fedkeel.deploy.kept import KeptStates
from fedkeel.deploy.prepared import Built, described
from fedkeel.errors import FedkeelError
from fedkeel.errors import described as described_data
from fedkeel.local.evaluation import Evaluator
from fedkeel.local.loop import Between
from fedkeel.methods.job import Fresh
from fedkeel.methods.types import Message as Tensors
from fedkeel.record.durable import whole
from fedkeel.runner.core import first_kept
from fedkeel.task.task import describe
from fedkeel.wire.orders import Columns, Order, Trained
from fedkeel.world.remote.expected import answered, sent_columns
from fedkeel.world.remote.message import Message

FIRST = "first.msg"


class Workbench:
    """The data and the model of a site, and what it keeps, for one run."""

    def __init__(
        self,
        built: Built,
        client: int,
        folder: Path,
        tell_labels: bool,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`tell` hears what the site's own people should know, without its name."""
        self._built, self._client, self._folder, self._tell_labels = built, client, folder, tell_labels
        self._tell, self._lost = tell, set[int]()
        """`_lost`: jobs after which what was kept is not there."""
        self._rule = built.workshop.rule
        self._trainer = built.trainer()
        self._kept = KeptStates(folder)
        self._evaluator = Evaluator(built.workshop.module, built.data, built.experiment.objective)
        self.stoppable = not self._trainer.gradient.reads_by_number
        """Whether a job can be ended early; native kernels train whole jobs."""
        with suppress(FileNotFoundError):
            told = Message.unpack((folder / FIRST).read_bytes()).tensors
            if self._fits(told):  # otherwise the model was changed, and the server will refuse it
                built.flat.load(told["w"], told["buffers"])

    def _fits(self, model: Tensors) -> bool:
        """Whether a first model has the shape of ours."""
        return all(
            model[name].shape == own.shape for name, own in zip(("w", "buffers"), self._built.first, strict=True)
        )

    @property
    def facts(self) -> dict[str, Any]:
        """What the server is told."""
        data = self._built.data
        counts = {}
        if self._tell_labels and self._built.experiment.task in ("classification", "binary"):
            counts = {"labels": data.label_counts()[self._client].tolist()}
        return {
            **described(self._built, self._client),
            **counts,
            "layout": self._built.layout_digest,
            "alike": alike.told(self._built.experiment, self._built.layout),
            "number": self._client,
            "first": self._built.first_digest,
            "fedkeel": fedkeel.__version__,
            "torch": str(torch.__version__),
        }

    @property
    def told_digest(self) -> str:
        """Of what the server is told, but for the first model, which it may have replaced since."""
        told = {name: value for name, value in self.facts.items() if name != "first"}
        return sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    def begin(self, message: Message) -> None:
        """Start from the server's first model; it is kept for a process that is started again."""
        if not self._fits(message.tensors):
            raise FedkeelError("the server's first model has another shape than ours")
        with whole(self._folder / FIRST) as path:
            path.write_bytes(message.pack())
        self._built.flat.load(message.tensors["w"], message.tensors["buffers"])

    def _state(self, job: int) -> dict[str, Tensor]:
        """What the client keeps after a job, or before its first one (0); where that is lost, it begins anew."""
        found = self._kept.after(job) if job else None
        if found is not None:
            return dict(found)
        first = dict(first_kept(self._built.experiment, self._built.flat))
        if job and job not in self._lost and (first or self._kept.jobs):
            self._lost.add(job)
            self._tell(
                f"has lost what it kept after job {job}, or it is damaged; it begins anew, and the result is another "
                f"(see {self._folder})"
            )
        return first

    def _told_lost(self, job: int) -> dict[str, Any]:
        """What an answer says of a state that was needed for it."""
        return {"lost": True} if job in self._lost else {}

    def order(self, message: Message, survey: bool = False) -> tuple[Order, int]:
        """(The job of a message, after how many epochs it asks for a fresh model)."""
        names = ("job", "client", "round", "wave", "version", "epochs", "after")
        told = {name: whole_number(message, name) for name in names}
        if told["client"] != self._client:
            raise FedkeelError(f"it is for client {told['client']}, but this is client {self._client}")
        kept, received, epochs = self._state(told["after"]), message.below("received/"), told["epochs"]
        w, buffers = self._whole(message)
        lr = message.tensors.get("lr")
        if lr is None or not epochs or lr.shape != (epochs,):
            raise FedkeelError(f"it must have a learning rate for each of its {epochs} epochs")
        order = Order(
            job=told["job"],
            client=self._client,
            round=told["round"],
            epochs=epochs,
            start=w,
            buffers=buffers,
            lr=lr,
            received=received,
            kept=kept,
            survey=survey,
            wave=told["wave"],
            version=told["version"],
        )
        seed = self._built.experiment.seed
        one, two = streams.uniform(streams.keys(seed, "slot", order.wave, np.array([self._client])), 2)[0].tolist()
        slot = 0 if survey else self._rule.asks_after(kept, received, epochs, (one, two))
        return order, slot if slot < epochs else 0

    def _whole(self, message: Message) -> tuple[Tensor, Tensor]:
        """A model of the server's: what did not travel is that of the first model."""
        (w, buffers), part, flat = (
            (message.tensors.get(each) for each in ("w", "buffers")),
            self._rule.downloads,
            self._built.flat,
        )
        mask = None if part == "all" else self._built.layout.mask(part)
        size = len(flat.w) if mask is None else int(mask.sum())
        if w is None or w.shape != (size,) or w.dtype != flat.w.dtype:
            raise FedkeelError(f"it must have {size} weights of {flat.w.dtype}; got {described_data(w)}")
        if buffers is not None and (buffers.shape != flat.buffers.shape or buffers.dtype != flat.buffers.dtype):
            raise FedkeelError(f"it must have {len(flat.buffers)} buffers; got {described_data(buffers)}")
        whole_w = w if mask is None else flat.w.masked_scatter(mask, w)
        return whole_w, flat.buffers if buffers is None else buffers

    def fresh(self, message: Message) -> Fresh[int] | None:
        """The model that came in the middle of a job, if there is a newer one."""
        return Fresh(*self._whole(message), message.facts["version"]) if message.facts["newer"] else None

    def train(self, order: Order, between: Between | None) -> Columns:
        """What came of an order."""
        return self._trainer([order], between=between, encode=True)

    def finish(self, order: Order, columns: Columns, after: int, settled: int) -> Message:
        """The answer; the client's state is on the disk before it goes.

        The job began with the state after the job `after`. States before `settled` are not needed.
        """
        trained = Trained(columns)
        sound = trained.sound(self._built.experiment.max_loss)[0]
        kept = {name: each[0] for name, each in trained.kept.items()} if sound else order.kept
        self._kept.put(order.job, kept, settled)
        up = sent_columns(columns, self._rule, self._built.layout)
        facts = {"job": order.job, "client": order.client, "version": order.version, "epochs": order.epochs}
        return Message("done", {**facts, **self._told_lost(after)}, up)

    def survey(self, message: Message) -> Message:
        """The answer to a survey; it leaves no trace."""
        order, _ = self.order(message, survey=True)
        rule = self._rule.survey
        if rule is None:
            raise FedkeelError("the client rule answers no survey")
        facts = {"job": order.job, **self._told_lost(whole_number(message, "after"))}
        return Message("answer", facts, answered(self._trainer([order], rule.limit)))

    def evaluate(self, message: Message) -> Message:
        """The model, or the client's own, on the client's own rows."""
        on, data = message.facts["on"], self._built.data
        if on not in ("test", "validation"):
            raise FedkeelError(f"{on!r} are no rows to test on")
        rows = data.test_rows if on == "test" else data.validation_rows
        if rows is None or not len(rows[self._client]):
            return Message("scores", {"rows": 0})
        after = message.facts["after"][self._client]
        model = self._rule.own(*self._whole(message), self._state(after))
        score = self._evaluator.score(*model, torch.from_numpy(rows[self._client]), on)
        facts = {"rows": len(rows[self._client]), "loss": score.loss, "metrics": describe(score.metrics)}
        return Message("scores", {**facts, **self._told_lost(after)})


def whole_number(message: Message, name: str) -> int:
    """A fact of a message that must be a whole number from 0 on."""
    value = message.facts.get(name)
    if type(value) is not int or value < 0:
        raise FedkeelError(f"{name} must be a whole number from 0 on; got {value!r}"[:200])
    return value
