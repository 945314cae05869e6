"""How clients train, and who does that work on this machine."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedkeel.config.section import Count, Section, Share, Size
from fedkeel.errors import InputError


class LocalSettings(Section):
    """What a client does with the model it gets."""

    epochs: Annotated[int, Field(gt=0, le=1_000_000)] | None = None
    """Of a job; by default 1, unless `steps` says how long it is."""
    steps: Annotated[int, Field(gt=0, le=1_000_000)] | None = None
    """Mini-batches of a job, in place of epochs: everything that counts a job's epochs then counts these."""
    batch_size: Count | Literal["full"] = 32
    lr: Size = 0.05
    lr_decay: Share = 1.0
    """Factor on the learning rate after every round."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0, le=1e38)] = 0.0
    clip_norm: Size | None = None
    """Upper bound on the norm of a mini-batch's gradient."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.epochs is not None and self.steps is not None:
            raise InputError(
                f"local.epochs={self.epochs} and local.steps={self.steps} both say how long a job is; "
                "accepted: one of them"
            )
        if self.steps is None and self.epochs is None:
            self.__dict__["epochs"] = 1  # shown, yet not counted as set by the user
        return self

    @property
    def by_step(self) -> bool:
        """Whether work is counted in mini-batches, not in epochs."""
        return self.steps is not None

    @property
    def units(self) -> int:
        """Epochs of a job, or mini-batches where these are counted."""
        return self.steps or self.epochs or 1


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

    Results are equal bit for bit where `stack`, `native`, `channels_last` and `threads` are; `workers` changes none.
    """

    kind: Literal["auto", "serial", "vectorised", "processes", "threads"] = "auto"
    """One client after the other; many at once; either of these in worker processes, one a core; or in threads, which
    native kernels can use."""
    stack: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Clients trained at once, as one stack of vectors; 0: one after the other."""
    native: bool | None = None
    """Whether compiled kernels compute gradients instead of PyTorch, for models that they know; left open, `auto`
    measures it, `threads` uses them and the others do not."""
    channels_last: bool | None = None
    """Whether images lie in memory pixel by pixel, where clients train one after the other."""
    workers: Annotated[int, Field(gt=0, le=4096)] | None = None
    """Processes or threads; by default as many as there are cores."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        many = "1 or more, or kind serial"
        accepted = {"serial": "0, or kind vectorised", "vectorised": many, "threads": many}.get(self.kind)
        if accepted and self.stack is not None and (self.stack > 0) == (self.kind == "serial"):
            raise InputError(
                f"executor.stack: {self.stack} is not accepted with kind {self.kind}; accepted: {accepted}"
            )
        if self.channels_last and (self.native or self.kind == "threads"):
            raise InputError("executor.channels_last: true is not accepted with native training; accepted: one of them")
        if self.channels_last and (self.stack or self.kind == "vectorised"):
            raise InputError("executor.channels_last: true is not accepted with stacks; accepted: executor.stack=0")
        if self.kind == "threads" and self.native is False:
            raise InputError(
                "executor.native: false is not accepted with kind threads; accepted: true, or kind processes"
            )
        if self.workers is not None and self.kind in ("serial", "vectorised"):
            raise InputError(
                f"executor.workers: {self.workers} is not accepted with kind {self.kind}; "
                "accepted: kind processes or threads"
            )
        return self

    @property
    def completed(self) -> ExecutorSettings:
        """With what follows from the kind that was asked for by name."""
        follows: dict[str, int | bool] = {}
        if self.kind != "auto" and self.native is None:
            follows["native"] = self.kind == "threads"
        native = follows.get("native", self.native)
        if self.kind == "serial":
            follows |= {"stack": 0, "channels_last": bool(self.channels_last)}
        elif self.kind in ("vectorised", "threads") or self.stack or native:
            follows["channels_last"] = bool(self.channels_last)
        return self.model_copy(update=follows)

    @property
    def settled(self) -> bool:
        """Whether nothing that could change a result is left open."""
        return self.kind != "auto" and None not in (self.stack, self.native, self.channels_last)

    @property
    def label(self) -> str:
        """The settings in words."""
        stack = f" in stacks of {self.stack}" if self.stack else ""
        more = ", native" * bool(self.native) + ", channels last" * bool(self.channels_last)
        return f"{self.kind}{stack}{more}"
