"""One validated, frozen description of a run; the same names in YAML, on the command line and in Python."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from fedkeel.config import consistency, usercode, yamltext
from fedkeel.config.algorithm import AlgorithmSettings as AlgorithmSettings
from fedkeel.config.elsewhere import Elsewhere
from fedkeel.config.section import RULES, Count, Section, Share, explain
from fedkeel.config.spelling import LISTS, chosen, flow, listed, put, rules_inside, spelled_out
from fedkeel.data.partition import AnyPartition, Iid
from fedkeel.data.settings import DatasetSettings as DatasetSettings
from fedkeel.errors import InputError, label, shown
from fedkeel.local.settings import PLACES
from fedkeel.local.settings import ExecutorSettings as ExecutorSettings
from fedkeel.local.settings import FinetuneSettings as FinetuneSettings
from fedkeel.local.settings import LocalSettings as LocalSettings
from fedkeel.methods.server import Pace
from fedkeel.models.settings import ModelSettings as ModelSettings
from fedkeel.record.settings import CheckpointSettings as CheckpointSettings
from fedkeel.server.settings import GateSettings as GateSettings
from fedkeel.server.settings import Sampling
from fedkeel.server.settings import ScheduleSettings as ScheduleSettings
from fedkeel.task.aim import Aim
from fedkeel.task.metrics import canonical
from fedkeel.task.settings import EarlyStoppingSettings, Kind, Loss, LossSettings, Metrics
from fedkeel.task.task import Task, loss_name, metric_names, new_task
from fedkeel.wire.settings import WireSettings
from fedkeel.world.faults import FaultSettings as FaultSettings
from fedkeel.world.fleet.settings import FleetSettings as FleetSettings

NO_FOLDER = re.compile(r"^\.|[/\\]")


class Experiment(Section):
    """Everything that decides what a run computes."""

    name: str | None = None
    """The name of the run in figures, and of its folder in `runs/`. By default the folder is named after the data set,
    the model, the method and the seed."""
    dataset: DatasetSettings = DatasetSettings()
    """The data set, by its name or as a section of settings."""
    partition: AnyPartition = Iid()
    """How the training samples are dealt out to the clients."""
    task: Kind = "classification"
    """What the model learns: one of several classes (`classification`), yes or no from one logit (`binary`), several
    such answers (`multilabel`), real numbers (`regression`), or a class for each token, such as the next token
    (`sequence`)."""
    loss: Loss = LossSettings()
    """What training minimises, by its name or as a section of settings."""
    metrics: Metrics = ()
    """How models are judged, by names or `module:function`; the first metric is the one by which they are compared. By
    default accuracy; for `binary` also auroc; for `multilabel` f1 and auroc; for `regression` rmse and r2; for
    `sequence` accuracy and perplexity."""
    model: ModelSettings = ModelSettings()
    """The model, by its name or as a section with its options."""
    algorithm: AlgorithmSettings = AlgorithmSettings()
    """The federated learning method, by its name or as a section with its settings."""
    local: LocalSettings = LocalSettings()
    """How a client trains the model that it receives."""
    fleet: FleetSettings = FleetSettings()
    """How fast the simulated devices and their links are, and when they are on."""
    faults: FaultSettings = FaultSettings()
    """What goes wrong with jobs on purpose, to test how robust a method is."""
    schedule: ScheduleSettings = ScheduleSettings()
    """When the server sends work to clients, and how long it waits for them."""
    gate: GateSettings = GateSettings()
    """Which uploads the server refuses before it aggregates them."""
    wire: WireSettings = ()
    """What is done to uploads on their way to the server, in this order, for example `[{kind: clip, norm: 5}, {kind:
    cast, dtype: float16}]`."""
    checkpoint: CheckpointSettings = CheckpointSettings()
    """How often the state of the run is saved, so that it can be resumed."""
    clients: Annotated[int, Field(gt=0, le=100_000_000)] = 20
    """The number of clients among which the data is dealt out."""
    per_round: Count | None = None
    """The number of clients that take part in a round. The default is 10, or all clients if there are fewer."""
    participation: Share | None = None
    """The share of all clients that take part in a round. It replaces `per_round`."""
    sampling: Sampling = "uniform"
    """How the clients of a round are drawn. `uniform` draws each client at most once, `scheme1` draws with replacement
    in proportion to the clients' samples (scheme I of Li et al., 2020), and `module:function` calls your own
    `draw(sizes, count, free, rng)`."""
    rounds: Count = 30
    """The number of rounds after which the run ends. For a method without rounds, `per_round` arrivals count as one
    round."""
    limit_seconds: Annotated[float, Field(gt=0, le=1e12)] | None = None
    """The virtual time in seconds after which the run ends, even if there are rounds left."""
    limit_wall_seconds: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """The real time in seconds after which the run stops with a checkpoint, to be resumed. Each resume has as much time
    again."""
    init: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """The weights and buffers to start from: the folder of a finished run, a .safetensors file, or a file made by
    torch.save. By default the model starts at random."""
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    """The seed of all random numbers: data, model, clients, devices and training."""
    evaluate_every: Count = 1
    """The model is tested after every so many rounds, and always after the last one."""
    evaluate_local: bool = False
    """Also test the model of every participant as it comes back, on the whole test set."""
    evaluate_clients: bool = False
    """Also test the model on each client's own test rows, at every evaluation. Where clients have none, their results
    are estimated from the common test set, in the proportions of their training labels. At the end of a run, clients
    that have test rows are tested in any case."""
    evaluate_classes: bool = False
    """Also record metrics of each class at every evaluation; the summary has those of the last one in any case."""
    finetune: FinetuneSettings = FinetuneSettings()
    """How each client adapts its own copy of the final model before that copy is tested."""
    target: Annotated[float, Field(ge=-1e38, le=1e38)] | None = None
    """The value of `target_metric` that the run should reach; the summary says what that took."""
    target_metric: str | None = None
    """The metric, or `loss`, that targets, early stopping and the best model look at; by default the first metric. It
    is taken from the validation set where there is one, and else from the test set."""
    target_accuracy: Share | None = None
    """Short for `target` with `target_metric: accuracy`."""
    stop_at_target: bool = False
    """End the run as soon as it reaches its target."""
    early_stopping: EarlyStoppingSettings = EarlyStoppingSettings()
    """When a run ends because it has stopped getting better."""
    reduce: bool = False
    """Average the clients' weights where they are trained, so that only their mean comes to the server. This takes less
    memory, and less traffic on a cluster. It needs a method whose server looks only at the mean, and results differ by
    rounding."""
    executor: ExecutorSettings = ExecutorSettings()
    """How the clients' training is carried out on this machine. It changes the speed of a run, not its meaning."""
    device: Literal["cpu", "cuda"] = "cpu"
    """The device on which PyTorch computes."""
    threads: Annotated[int, Field(gt=0, le=256)] = 1
    """The number of threads that PyTorch uses inside an operation. Worker processes always use one; workers on a Ray
    cluster need as many `executor.cpus`. With 1, small models run fastest."""
    dtype: Literal["float32", "float64"] = "float32"
    """The floating-point type of the weights and of all computations."""

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise explain(error, type(self), advise=Elsewhere(type(self), values).advice) from None

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, name: str | None) -> str | None:
        if name is None or (0 < len(name.encode()) <= 100 and name.isprintable() and not NO_FOLDER.search(name)):
            return name
        raise InputError(
            f"name must be 1 to 100 printable bytes that name a folder, without / and \\ and not starting with a dot; "
            f"got {shown(name)}"
        )

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, values: dict[str, Any]) -> dict[str, Any]:
        return rules_inside({k: listed(k, spelled_out(k, v)) for k, v in values.items()})

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.per_round is None and self.participation is None:
            self.__dict__["per_round"] = min(10, self.clients)  # shown, yet not counted as set by the user
        if self.target_metric is not None:
            self.__dict__["target_metric"] = canonical(usercode.short(self.target_metric))
        consistency.check(self)
        self.__dict__["metrics"] = metric_names(self.task, self.metrics)
        if self.gate.max_loss is None:
            usual = 1e4 if loss_name(self.task, self.loss).endswith("cross_entropy") else 1e30
            self.__dict__["gate"] = self.gate.model_copy(update={"max_loss": usual})
        return self

    @cached_property
    def objective(self) -> Task:
        """The task with its loss and metrics; the user's functions are imported."""
        return new_task(self.task, self.loss, self.metrics)

    @property
    def max_loss(self) -> float:
        """Above which training has diverged."""
        assert self.gate.max_loss is not None
        return self.gate.max_loss

    @property
    def aim(self) -> Aim:
        """The metric by which runs are tuned, and its target."""
        value = self.target if self.target_accuracy is None else self.target_accuracy
        first = "accuracy" if self.target_accuracy is not None else self.objective.names[0]
        metric = self.target_metric or first
        return Aim(metric, self.objective.better(metric), value)

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
                raise InputError(f"a setting must be key=value, such as local.lr=0.05; got {shown(override)}")
            key = f"algorithm.{key}" if key in RULES else key
            if key in seen:
                raise InputError(f"{label(key)} is given twice; keep one of the two")
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
            for key in (k for k in one if k in other and not (name == "executor" and k in _places(one, other))):
                left_open = name == "executor" and key != "gpus" and {None, "auto"} & {one[key], other[key]}
                if one[key] != other[key] and not left_open:
                    return f"{name}.{key}={flow(one[key])}, not {flow(other[key])}"
    return None


def _places(one: Mapping[str, Any], other: Mapping[str, Any]) -> Sequence[str]:
    """Settings of two executors that make no difference to a result; what is left open follows from the kind."""
    settled = all(each.get(key) is not None for each in (one, other) for key in ("stack", "native", "channels_last"))
    return PLACES if settled else [name for name in PLACES if name != "kind"]


def _parts(name: str, one: Any, other: Any) -> list[tuple[str, Any, Any]]:
    """Two values to compare under a name; of two lists of sections that are equally long, each pair."""
    if name not in LISTS or len(one) != len(other):
        return [(name, one, other)]
    return [(f"{name}.{place}", *pair) for place, pair in enumerate(zip(one, other, strict=True))]
