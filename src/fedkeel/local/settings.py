"""How clients train, and who does that work on this machine."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedkeel.config.section import Count, Section, Share, Size
from fedkeel.errors import InputError, shown


class LocalSettings(Section):
    """What a client does with the model it gets."""

    epochs: Annotated[int, Field(gt=0, le=1_000_000)] | None = None
    """The number of passes over a client's data in one job. The default is 1, unless `steps` is given."""
    steps: Annotated[int, Field(gt=0, le=1_000_000)] | None = None
    """The number of mini-batches in one job, instead of `epochs`. Settings that count a job's epochs then count
    mini-batches."""
    batch_size: Count | Literal["full"] = 32
    """The number of samples in a mini-batch. With `full`, a mini-batch is all data of the client."""
    lr: Size = 0.05
    """The learning rate of the clients."""
    lr_decay: Share = 1.0
    """The learning rate is multiplied by this factor after every round."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """The optimiser of the clients, as in PyTorch. Its state starts from zero in every job."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The momentum of `sgd`."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """The decay rates of `adam` and `adamw` for the running means of gradients and of squared gradients."""
    eps: Annotated[float, Field(ge=1e-30, le=1e38)] = 1e-8
    """The number that `adam` and `adamw` add to the denominator for numerical stability."""
    weight_decay: Annotated[float, Field(ge=0, le=1e38)] = 0.0
    """The weight decay. `sgd` and `adam` add it to the gradient, and `adamw` subtracts it from the weights."""
    clip_norm: Size | None = None
    """The largest Euclidean norm of a mini-batch's gradient; longer gradients are scaled down. By default nothing is
    clipped."""

    @model_validator(mode="after")
    def _fits_the_optimizer(self) -> Self:
        if self.optimizer != "sgd" and self.momentum:
            raise InputError(
                f"local.momentum: {self.momentum:g} is not accepted with optimizer {self.optimizer}, which "
                "has its own; accepted: 0, or local.betas"
            )
        for field in ("betas", "eps"):
            value = getattr(self, field)
            if self.optimizer == "sgd" and value != type(self).model_fields[field].default:
                raise InputError(
                    f"local.{field}: {shown(value)} is not accepted with optimizer sgd; "
                    "accepted: optimizer adam or adamw"
                )
        return self

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
    """The number of epochs for which each client trains its own copy of the final model. The default is 5 for FedBABU
    and 0 for all other methods."""
    lr: Size | None = None
    """The learning rate of fine-tuning. The default is the learning rate of the last round."""
    part: Literal["all", "body", "head"] = "all"
    """The part of the model that is fine-tuned."""


class ExecutorSettings(Section):
    """How the work of clients is done on this machine. What is left open is measured before the first round.

    Results are equal bit for bit where `stack`, `native`, `channels_last` and `threads` are; `workers` changes none.
    """

    kind: Literal["auto", "serial", "vectorised", "processes", "threads"] = "auto"
    """How clients are trained: one after the other (`serial`), many at once (`vectorised`), in worker processes
    (`processes`), or in threads with native kernels (`threads`). `auto` measures what is fastest."""
    stack: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """The number of clients that are trained at once as one stack; 0 trains one after the other. By default it is
    measured."""
    native: bool | None = None
    """Compute gradients with compiled kernels instead of PyTorch, for models that they support. By default `auto`
    measures it, `threads` uses them, and the other kinds do not."""
    channels_last: bool | None = None
    """Store images pixel by pixel (PyTorch's `channels_last`) if clients are trained one after the other. By default it
    is measured."""
    workers: Annotated[int, Field(gt=0, le=4096)] | None = None
    """The number of worker processes or threads. The default is one per core."""

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
