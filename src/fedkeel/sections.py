"""The sections of an experiment that say what is trained, on what, and how."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from fedkeel import algorithms, models
from fedkeel.algorithms import ClientRule, ServerRule
from fedkeel.data import datasets
from fedkeel.errors import InputError
from fedkeel.settings import Section
from fedkeel.spelling import RULES, named

Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(gt=0, le=1_000_000_000)]
Size = Annotated[float, Field(gt=0, le=1e38)]
"""A positive number that float32 can hold."""
GIVEN = "custom:"
"""Begins the recorded name of data or a model that was handed over in Python."""


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
