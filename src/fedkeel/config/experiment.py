"""One validated, frozen description of a run; the same names in YAML, on the command line and in Python."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from fedkeel.config import yamltext
from fedkeel.config.algorithm import AlgorithmSettings as AlgorithmSettings
from fedkeel.config.section import RULES, Count, Section, Share, explain
from fedkeel.config.spelling import LISTS, chosen, flow, listed, put, rules_inside, spelled_out
from fedkeel.data.partition import AnyPartition, Iid
from fedkeel.data.settings import DatasetSettings as DatasetSettings
from fedkeel.errors import InputError, label, shown
from fedkeel.local.settings import ExecutorSettings as ExecutorSettings
from fedkeel.local.settings import FinetuneSettings as FinetuneSettings
from fedkeel.local.settings import LocalSettings as LocalSettings
from fedkeel.methods.server import Pace
from fedkeel.models.settings import ModelSettings as ModelSettings
from fedkeel.record.settings import CheckpointSettings as CheckpointSettings
from fedkeel.server.settings import GateSettings as GateSettings
from fedkeel.server.settings import Sampling
from fedkeel.server.settings import ScheduleSettings as ScheduleSettings
from fedkeel.wire.settings import WireSettings
from fedkeel.world.faults import FaultSettings as FaultSettings
from fedkeel.world.fleet.settings import FleetSettings as FleetSettings

NO_FOLDER = re.compile(r"^\.|[/\\]")


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
    wire: WireSettings = ()
    """What is done to uploads on their way, in this order: `[{kind: clip, norm: 5}, {kind: cast, dtype: float16}]`."""
    checkpoint: CheckpointSettings = CheckpointSettings()
    clients: Annotated[int, Field(gt=0, le=100_000_000)] = 20
    per_round: Count | None = None
    """Clients that take part in a round: by default 10, or all if there are fewer."""
    participation: Share | None = None
    """The same as a share of all clients."""
    sampling: Sampling = "uniform"
    """How a round's clients are drawn. `uniform`: each at most once. `scheme1`: with replacement in proportion to their
    samples, and then averaged as often as they were drawn (scheme I of Li et al., 2020; FedLGA). `module:function`: as
    the user's `draw(sizes, count, free, rng)` returns them."""
    rounds: Count = 30
    """For a method without rounds, `per_round` arrivals are one."""
    limit_seconds: Annotated[float, Field(gt=0, le=1e12)] | None = None
    """Virtual seconds after which the run ends, if it has not before."""
    limit_wall_seconds: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Real seconds after which the run stops with a checkpoint, to be resumed; each resume has as many again."""
    init: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Weights and buffers to start from: the folder of a finished run, a .safetensors file, or a file of torch.save."""
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
        return rules_inside({k: listed(k, spelled_out(k, v)) for k, v in values.items()})

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
        count, (unit, word) = self.local.units, ("steps", "mini-batch") if self.local.by_step else ("epochs", "epoch")
        missing = self.fleet.tau_max if self.fleet.tau_max is not None else count - 1
        if missing >= count:
            raise InputError(
                f"fleet.tau_max: {missing} is not accepted with local.{unit}={count}; accepted: at most "
                f"{count - 1}, for every device does one {word}"
            )
        if self.fleet.rho and count == 1:
            raise InputError(
                f"fleet.rho: {self.fleet.rho:g} is not accepted with local.{unit}=1, of which none can be missed; "
                f"accepted: local.{unit} of 2 or more"
            )
        self._check_pace()
        needs_weights = {
            "gate.max_norm": self.gate.max_norm,
            "gate.min_norm": self.gate.min_norm,
            "wire": next((each.kind for each in self.wire if each.needs_weights), None),
        }
        for field, given in needs_weights.items():
            if given is not None and self.algorithm.rules()[0].uploads == "none":
                raise InputError(
                    f"{field}: {given} is not accepted with {self.algorithm.label}, whose clients send no weights; "
                    "accepted: without it"
                )
        for rule in self.algorithm.rules():
            if self.local.optimizer != "sgd" and rule.needs_sgd:
                raise InputError(
                    f"local.optimizer: {self.local.optimizer} is not accepted with {self.algorithm.label}, as "
                    f"{rule.needs_sgd}; accepted: sgd"
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
        if schedule.over_select and self.sampling == "scheme1":
            raise InputError(
                f"schedule.over_select: {schedule.over_select:g} is not accepted with sampling {self.sampling}, which "
                "may draw a client twice; accepted: sampling uniform"
            )
        if self.pace != "barrier" and self.sampling == "scheme1":
            raise InputError(
                f"sampling: {self.sampling} is not accepted with {self.algorithm.label}, which receives updates one by "
                "one; accepted: uniform"
            )

    @property
    def plans_ahead(self) -> str | None:
        """Of the method or of any section."""
        sections = (*self.algorithm.rules(), *(getattr(self, name) for name in type(self).model_fields))
        return next((each.plans_ahead for each in sections if isinstance(each, Section) and each.plans_ahead), None)

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
        return cls.build(yamltext.read(Path(path)) if path is not None else {}, overrides)

    @classmethod
    def build(cls, settings: Mapping[str, Any], overrides: Sequence[str] = ()) -> Experiment:
        """From values as a file has them, with dotted overrides on top."""
        values = rules_inside({**settings})
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
        for given, replaced in (("steps", "epochs"), ("epochs", "steps")):
            if seen.get(f"local.{given}") is not None and f"local.{replaced}" not in seen:
                values["local"].pop(replaced, None)
        return cls(**{str(k): v for k, v in values.items()})

    def to_yaml(self) -> str:
        """Every setting, defaults included; `Experiment.load` reads it back."""
        return yamltext.write(self.model_dump())


def contradiction(said: Mapping[str, Any], known: Mapping[str, Any], aside: Container[str] = ()) -> str | None:
    """The first setting that one description has otherwise than another, if there is one: 'local.lr=0.1, not 0.2'.

    Both as `Experiment.model_dump` gives them. What only one of them has contradicts nothing, nor does an executor that
    is left open, nor what is to be put aside.
    """
    for section in (name for name in said if name in known and name not in aside):
        for name, one, other in _parts(section, said[section], known[section]):
            if not isinstance(one, dict) or not isinstance(other, dict):
                if one != other:
                    return f"{name}={flow(one)}, not {flow(other)}"
                continue
            for key in (k for k in one if k in other and (name, k) != ("executor", "workers")):
                left_open = name == "executor" and (one[key] in (None, "auto") or other[key] in (None, "auto"))
                if one[key] != other[key] and not left_open:
                    return f"{name}.{key}={flow(one[key])}, not {flow(other[key])}"
    return None


def _parts(name: str, one: Any, other: Any) -> list[tuple[str, Any, Any]]:
    """Two values to compare under a name; of two lists of sections that are equally long, each pair."""
    if name not in LISTS or len(one) != len(other):
        return [(name, one, other)]
    return [(f"{name}.{place}", *pair) for place, pair in enumerate(zip(one, other, strict=True))]
