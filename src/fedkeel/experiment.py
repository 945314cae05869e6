"""One validated, frozen description of a run; the same names in YAML, on the command line and in Python."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from fedkeel import algorithms, models, yamltext
from fedkeel.algorithms import ClientRule, ServerRule
from fedkeel.algorithms.rules import Pace
from fedkeel.data import datasets
from fedkeel.data.partition import AnyPartition, Iid
from fedkeel.errors import InputError, label, shown
from fedkeel.fleet.faults import FaultSettings as FaultSettings
from fedkeel.fleet.settings import FleetSettings as FleetSettings
from fedkeel.safety import CheckpointSettings as CheckpointSettings
from fedkeel.safety import GateSettings as GateSettings
from fedkeel.schedule import ScheduleSettings as ScheduleSettings
from fedkeel.settings import Section, explain
from fedkeel.spelling import RULES, chosen, named, put, rules_inside, spelled_out

Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(gt=0, le=1_000_000_000)]
Size = Annotated[float, Field(gt=0, le=1e38)]
"""A positive number that float32 can hold."""
NO_FOLDER = re.compile(r"^\.|[/\\]")


class DatasetSettings(Section):
    """Which data: a known data set, or `module:function` that returns a `Dataset` or a `FederatedData`."""

    name: str = "fashion-mnist-mini"
    train_limit: Count | None = None
    """Use only so many training samples, drawn at random."""
    test_limit: Count | None = None
    augment: Literal["none", "crop-flip"] = "none"
    """Random crop after padding by 4, and horizontal flip, of training images."""
    resize: Annotated[int, Field(gt=0, le=2048)] | None = None
    """Scale images to this height and width, batch by batch."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return name if ":" in name else datasets.canonical(name)


class ModelSettings(Section):
    """Which model: one of the zoo with its options, or `module:function` that returns an `nn.Module`."""

    model_config = ConfigDict(extra="allow")

    name: str = "mlp-400"

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """Options that are not given get the model's defaults."""
        name, given = named(values, cls.model_fields["name"].default)
        if name is None or ":" in name:
            return values
        return {"name": name, **models.complete(name, given)}

    @property
    def options(self) -> dict[str, Any]:
        """What goes to the model's factory beside the shape of the data."""
        return dict(self.model_extra or {})


class AlgorithmSettings(Section):
    """Which method, with its hyper-parameters; those not given get the method's defaults."""

    model_config = ConfigDict(extra="allow")

    name: str = "fedavg"
    client: str | None = None
    """The method whose client rule is used, if it is not that of `name`."""
    server: str | None = None
    """The method whose server rule is used, likewise."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        name, given = named(values, cls.model_fields["name"].default)
        rules = {side: given.pop(side, None) for side in RULES}
        rules = {side: str(rule).lower() if isinstance(rule, bool) else rule for side, rule in rules.items()}
        if name is None or not all(isinstance(rule, str | None) for rule in rules.values()):
            return values
        client, server = algorithms.compose(name, **rules).rules(given)
        return {"name": name, **rules, **client.model_dump(), **server.model_dump()}

    @property
    def label(self) -> str:
        """The method's name, or those of the two whose rules are combined."""
        return self._method.name

    @property
    def _method(self) -> algorithms.Method:
        return algorithms.compose(self.name, self.client, self.server)

    def rules(self) -> tuple[ClientRule, ServerRule]:
        """The client rule and the server rule."""
        return self._method.rules(self.model_extra or {})


class LocalSettings(Section):
    """What a client does with the model it gets."""

    epochs: Annotated[int, Field(gt=0, le=1_000_000)] = 1
    batch_size: Count | Literal["full"] = 32
    lr: Size = 0.05
    lr_decay: Share = 1.0
    """Factor on the learning rate after every round."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0, le=1e38)] = 0.0
    clip_norm: Size | None = None
    """Upper bound on the norm of a mini-batch's gradient."""


class FinetuneSettings(Section):
    """How each client adapts its own model at the end, before that is tested on the client's own test share."""

    epochs: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """With the local settings; by default 5 for FedBABU and 0 for all others."""
    lr: Size | None = None
    """By default the last round's learning rate."""
    part: Literal["all", "body", "head"] = "all"
    """Which weights move."""


class ExecutorSettings(Section):
    """How the work of clients is done on this machine. What is left open is measured before the first round.

    Results are equal bit for bit where `stack`, `channels_last` and `threads` are; `workers` changes none.
    """

    kind: Literal["auto", "serial", "vectorised", "processes"] = "auto"
    """One client after the other; many at once; or either of these in worker processes, one a core."""
    stack: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Clients trained at once, as one stack of vectors; 0: one after the other."""
    channels_last: bool | None = None
    """Whether images lie in memory pixel by pixel, where clients train one after the other."""
    workers: Annotated[int, Field(gt=0, le=4096)] | None = None
    """Processes; by default as many as there are cores."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        accepted = {"serial": "0, or kind vectorised", "vectorised": "1 or more, or kind serial"}.get(self.kind)
        if accepted and self.stack is not None and (self.stack > 0) == (self.kind == "serial"):
            raise InputError(
                f"executor.stack: {self.stack} is not accepted with kind {self.kind}; accepted: {accepted}"
            )
        if self.channels_last and (self.stack or self.kind == "vectorised"):
            raise InputError("executor.channels_last: true is not accepted with stacks; accepted: executor.stack=0")
        if self.workers is not None and self.kind in ("serial", "vectorised"):
            raise InputError(
                f"executor.workers: {self.workers} is not accepted with kind {self.kind}; accepted: kind processes"
            )
        return self

    @property
    def settled(self) -> bool:
        """Whether nothing that could change a result is left open."""
        return self.kind != "auto" and self.stack is not None and self.channels_last is not None

    @property
    def label(self) -> str:
        """In words."""
        stack = f" in stacks of {self.stack}" if self.stack else ""
        return f"{self.kind}{stack}{', channels last' if self.channels_last else ''}"


class Experiment(Section):
    """Everything that decides what a run computes."""

    name: str | None = None
    """What the run is called in figures and below `runs/`."""
    dataset: DatasetSettings = DatasetSettings()
    partition: AnyPartition = Iid()
    model: ModelSettings = ModelSettings()
    algorithm: AlgorithmSettings = AlgorithmSettings()
    local: LocalSettings = LocalSettings()
    fleet: FleetSettings = FleetSettings()
    faults: FaultSettings = FaultSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    gate: GateSettings = GateSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    clients: Annotated[int, Field(gt=0, le=100_000_000)] = 20
    per_round: Count | None = None
    """Clients that take part in a round: by default 10, or all if there are fewer."""
    participation: Share | None = None
    """The same as a share of all clients."""
    sampling: Literal["uniform", "scheme1"] = "uniform"
    """How a round's clients are drawn: each at most once; or with replacement in proportion to their samples, and then
    averaged as often as they were drawn (scheme I of Li et al., 2020; FedLGA)."""
    rounds: Count = 30
    """For a method without rounds, `per_round` arrivals are one."""
    limit_seconds: Annotated[float, Field(gt=0, le=1e12)] | None = None
    """Virtual seconds after which the run ends, if it has not before."""
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    evaluate_every: Count = 1
    evaluate_local: bool = False
    """Also test every participant's model as it comes back, on the whole test set."""
    evaluate_clients: bool = False
    """At the end, test the model on every client's own share of the test set; always, where clients have their own."""
    finetune: FinetuneSettings = FinetuneSettings()
    target_accuracy: Share | None = None
    stop_at_target: bool = False
    executor: ExecutorSettings = ExecutorSettings()
    device: Literal["cpu", "cuda"] = "cpu"
    threads: Annotated[int, Field(gt=0, le=256)] = 1
    """Of PyTorch inside an operation, but for worker processes, which have one each. One is the same on every machine,
    bit for bit, and best for small models."""
    dtype: Literal["float32", "float64"] = "float32"

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise explain(error, type(self)) from None

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, name: str | None) -> str | None:
        if name is None or (0 < len(name.encode()) <= 100 and name.isprintable() and not NO_FOLDER.search(name)):
            return name
        raise InputError(
            f"name: {shown(name)} is not accepted; accepted: 1 to 100 bytes that name a folder, all printable, without "
            "/ and \\ and not beginning with a dot"
        )

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, values: dict[str, Any]) -> dict[str, Any]:
        return rules_inside({k: spelled_out(k, v) for k, v in values.items()})

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.per_round is not None and self.participation is not None:
            raise InputError(
                f"per_round={self.per_round} and participation={self.participation} say the same thing twice; "
                "accepted: one of them"
            )
        if self.per_round is None and self.participation is None:
            self.__dict__["per_round"] = min(10, self.clients)  # shown, yet not counted as set by the user
        # Data that is handed over in Python says later how many clients there are.
        if "clients" in self.model_fields_set and (self.per_round or 0) > self.clients:
            raise InputError(f"per_round: {self.per_round} is not accepted; accepted: at most clients={self.clients}")
        for field, value in (("part", self.finetune.part != "all" and self.finetune.part), ("lr", self.finetune.lr)):
            if value and not self.finetune_epochs:
                raise InputError(
                    f"finetune.{field}: {value} is not accepted without fine-tuning; accepted: set finetune.epochs"
                )
        missing = self.fleet.tau_max if self.fleet.tau_max is not None else self.local.epochs - 1
        if missing >= self.local.epochs:
            raise InputError(
                f"fleet.tau_max: {missing} is not accepted with local.epochs={self.local.epochs}; accepted: at most "
                f"{self.local.epochs - 1}, for every device does one epoch"
            )
        if self.fleet.rho and self.local.epochs == 1:
            raise InputError(
                f"fleet.rho: {self.fleet.rho:g} is not accepted with local.epochs=1, of which none can be missed; "
                "accepted: local.epochs of 2 or more"
            )
        self._check_pace()
        bounds = {"max_norm": self.gate.max_norm, "min_norm": self.gate.min_norm}
        for field, bound in bounds.items():
            if bound is not None and self.algorithm.rules()[0].uploads == "none":
                raise InputError(
                    f"gate.{field}: {bound:g} is not accepted with {self.algorithm.label}, whose clients send no "
                    "weights; accepted: leave it out"
                )
        if self.faults.corrupt and "huge" in self.faults.corruptions and self.gate.max_norm is None:
            raise InputError(
                "faults.corruptions: huge is not accepted without gate.max_norm, as nothing would refuse it; "
                "accepted: set gate.max_norm"
            )
        if self.stop_at_target and self.target_accuracy is None:
            raise InputError("stop_at_target: true is not accepted without a target; accepted: set target_accuracy")
        return self

    def _check_pace(self) -> None:
        """Whether the method can work like this."""
        own, asked, schedule = self.algorithm.rules()[1].pace, self.schedule.pace, self.schedule
        if (own == "barrier") != (self.pace == "barrier"):
            accepted = "barrier" if own == "barrier" else "stream, periodic or concurrency"
            raise InputError(
                f"schedule.pace: {asked} is not accepted with {self.algorithm.label}; accepted: auto, {accepted}"
            )
        schedule.check(self.pace)
        if schedule.over_select and self.sampling != "uniform":
            raise InputError(
                f"schedule.over_select: {schedule.over_select:g} is not accepted with sampling {self.sampling}, which "
                "may draw a client twice; accepted: sampling uniform"
            )
        if self.pace != "barrier" and self.sampling != "uniform":
            raise InputError(
                f"sampling: {self.sampling} is not accepted with {self.algorithm.label}, which receives updates one by "
                "one; accepted: uniform"
            )

    @property
    def pace(self) -> Pace:
        """Of dispatches: what was asked for, or the method's own."""
        return self.algorithm.rules()[1].pace if self.schedule.pace == "auto" else self.schedule.pace

    @property
    def busy_limit(self) -> int:
        """Clients that may be at work at once, where they are dispatched every so many seconds."""
        return max(1, int(self.schedule.busy_share * self.clients + 1e-9))

    @property
    def concurrency(self) -> int:
        """Clients at work, where there are always as many."""
        return min(self.clients, self.schedule.concurrency or 3 * self.participants)

    @property
    def participants(self) -> int:
        """Clients that take part in a round."""
        return self.per_round or max(1, round((self.participation or 0) * self.clients))

    @property
    def finetune_epochs(self) -> int:
        """Of each client's own model at the end."""
        chosen = self.finetune.epochs
        return self.algorithm.rules()[0].finetune_epochs if chosen is None else chosen

    def replace(self, **changes: Any) -> Experiment:
        """A copy with other top-level values, validated anew."""
        return Experiment(**{**{name: getattr(self, name) for name in self.model_fields_set}, **changes})

    @classmethod
    def load(cls, path: str | Path | None = None, overrides: Sequence[str] = ()) -> Experiment:
        """From a YAML file, with dotted overrides `key=value` on top."""
        values = rules_inside(yamltext.read(Path(path))) if path is not None else {}
        seen: dict[str, Any] = {}
        for override in overrides:
            key, equals, text = override.partition("=")
            if not (equals and all(key.split("."))) or key.count(".") > yamltext.DEEPEST:
                raise InputError(
                    f"override {shown(override)} is not accepted; accepted: key=value, such as local.lr=0.05"
                )
            key = f"algorithm.{key}" if key in RULES else key
            if key in seen:
                raise InputError(f"{label(key)}: set twice; accepted: one value")
            seen[key] = yamltext.parse(key, text)
        if any(key in seen for key in ("algorithm.name", *(f"algorithm.{side}" for side in RULES))):
            values = {k: chosen(v) if k == "algorithm" else v for k, v in values.items()}
        for key in sorted(seen, key=lambda key: key.count(".")):  # sections before what stands in them
            put(values, key.split("."), seen[key])
        for given, replaced in (("participation", "per_round"), ("per_round", "participation")):
            if given in seen and replaced not in seen:
                values.pop(replaced, None)
        return cls(**{str(k): v for k, v in values.items()})

    def to_yaml(self) -> str:
        """Every setting, defaults included; `Experiment.load` reads it back."""
        return yamltext.write(self.model_dump())


def contradiction(given: Experiment, stored: Experiment) -> str | None:
    """The first thing that an earlier description has otherwise than this one says in so many words, if there is one.

    An executor that is left open contradicts none.
    """
    said = given.model_dump(exclude_unset=True)
    if given.executor.kind == "auto":
        said.pop("executor", None)
    known = stored.model_dump()
    for section, value in said.items():
        for key, told in value.items() if isinstance(value, dict) else [(None, value)]:
            before = known[section] if key is None else known[section].get(key)
            if before != told:
                return f"{section if key is None else f'{section}.{key}'}={before}, not {told}"
    return None
