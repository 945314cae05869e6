"""How clients train, and who does that work on this machine."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedkeel.config.section import Count, Section, Share, Size
from fedkeel.errors import InputError, shown
from fedkeel.local.schedule import AnySchedule, Constant
from fedkeel.methods.path import Curve


class LocalSettings(Section):
    """What a client does with the model it gets."""

    epochs: Annotated[int, Field(gt=0, le=1_000_000)] | None = None
    """The number of passes over a client's data in one job. The default is 1, unless `steps` is given."""
    steps: Annotated[int, Field(gt=0, le=1_000_000)] | None = None
    """The number of mini-batches in one job, instead of `epochs`. Settings that count a job's epochs then count
    mini-batches."""
    batch_size: Count | Literal["full"] = 32
    """The number of samples in a mini-batch. With `full`, a mini-batch is all data of the client."""
    drop_last: bool = False
    """Whether an epoch leaves out the last mini-batch if it is shorter than the others. A client that has fewer samples
    than one mini-batch still trains on all of them."""
    lr: Size = 0.05
    """The learning rate of the clients, before `lr_decay` and `schedule`."""
    lr_decay: Share = 1.0
    """The learning rate is multiplied by this factor after every round."""
    schedule: AnySchedule = Constant()
    """How the learning rate changes over the rounds of a run, or over the steps of a job."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """The optimiser of the clients, as in PyTorch. Its state starts from zero in every job."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The momentum of `sgd`."""
    nesterov: bool = False
    """Whether the momentum of `sgd` is Nesterov's."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """The decay rates of `adam` and `adamw` for the running means of gradients and of squared gradients."""
    eps: Annotated[float, Field(ge=1e-30, le=1e38)] = 1e-8
    """The number that `adam` and `adamw` add to the denominator for numerical stability."""
    weight_decay: Annotated[float, Field(ge=0, le=1e38)] = 0.0
    """The weight decay. `sgd` and `adam` add it to the gradient, and `adamw` subtracts it from the weights."""
    clip_norm: Size | None = None
    """The largest Euclidean norm of a mini-batch's gradient; longer gradients are scaled down. By default nothing is
    clipped."""
    precision: Literal["float32", "bfloat16"] | None = None
    """In which precision clients compute the forward and backward pass. `bfloat16` keeps the weights in float32, as
    PyTorch's autocast does, and trains one client after the other. By default it is the experiment's `dtype`."""

    @model_validator(mode="after")
    def _fits_the_optimizer(self) -> Self:
        for field in ("momentum", "nesterov"):
            if self.optimizer != "sgd" and getattr(self, field):
                raise InputError(
                    f"local.{field} works only with local.optimizer=sgd, but {self.optimizer} is chosen; remove it"
                    + (" or set local.betas" if field == "momentum" else "")
                )
        if self.nesterov and not self.momentum:
            raise InputError("local.nesterov needs momentum; set local.momentum, such as 0.9, or remove it")
        for field in ("betas", "eps"):
            if self.optimizer == "sgd" and getattr(self, field) != type(self).model_fields[field].default:
                raise InputError(
                    f"local.{field} works only with local.optimizer=adam or adamw, but sgd is chosen; remove it or "
                    "choose another optimizer"
                )
        return self

    @model_validator(mode="after")
    def _one_schedule(self) -> Self:
        if self.schedule.over == "rounds" and self.lr_decay != 1:
            raise InputError(
                "local.lr_decay is an exponential schedule over rounds, and local.schedule is another schedule over "
                "rounds; keep one of the two"
            )
        return self

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.epochs is not None and self.steps is not None:
            raise InputError("local.epochs and local.steps both say how long a job is; keep one of the two")
        if self.steps is None and self.epochs is None:
            self.__dict__["epochs"] = 1  # shown, yet not counted as set by the user
        return self

    @property
    def plans_ahead(self) -> str | None:
        """As its schedule does."""
        return self.schedule.plans_ahead

    @property
    def by_step(self) -> bool:
        """Whether work is counted in mini-batches, not in epochs."""
        return self.steps is not None

    @property
    def units(self) -> int:
        """Epochs of a job, or mini-batches where these are counted."""
        return self.steps or self.epochs or 1

    def rate(self, round: int, rounds: int) -> float:
        """The learning rate of jobs that are dispatched in this round, from 1, of so many."""
        rate = self.lr * self.lr_decay ** (round - 1)
        return rate * float(self.schedule.factor(round - 1, rounds)) if self.schedule.over == "rounds" else rate

    @property
    def curve(self) -> Curve | None:
        """What a schedule over steps says of the steps of a job."""
        return self._over_steps if self.schedule.over == "steps" else None

    def _over_steps(self, step: int | NDArray[np.int64], each: NDArray[np.int64]) -> NDArray[np.float64]:
        return self.schedule.factor(step, each * self.units)

    @property
    def plain(self) -> bool:
        """Whether steps are those of SGD, with or without plain momentum."""
        return self.optimizer == "sgd" and not self.nesterov

    @property
    def only_autograd(self) -> str | None:
        """Why nothing else than PyTorch's autograd can train, one client after the other, if there is a reason."""
        return "local.precision=bfloat16 needs autograd" if self.precision == "bfloat16" else None

    @property
    def alike_in_epochs(self) -> bool:
        """Whether an epoch may have several steps, all of them at one rate."""
        return not self.by_step and self.schedule.over != "steps"


class FinetuneSettings(Section):
    """How each client adapts its own model at the end, before that is tested on the client's own test share."""

    epochs: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """The number of epochs for which each client trains its own copy of the final model. The default is 5 for FedBABU
    and 0 for all other methods."""
    lr: Size | None = None
    """The learning rate of fine-tuning. The default is the learning rate of the last round. A
    schedule over steps applies to it too."""
    part: Literal["all", "body", "head"] = "all"
    """The part of the model that is fine-tuned."""


PLACES = ("kind", "workers", "address", "cpus", "memory")
"""Settings of executors that make no difference to a result: who does the work, and where."""


class ExecutorSettings(Section):
    """How this machine does the work of clients. What is left open is measured before the first round.

    Results are equal bit for bit where `stack`, `native`, `channels_last` and `threads` are equal; `workers` does not
    change them.
    """

    kind: Literal["auto", "serial", "vectorised", "processes", "threads", "ray"] = "auto"
    """How clients are trained: one after the other (`serial`), many at once (`vectorised`), in worker processes
    (`processes`), in threads with native kernels (`threads`), or on the machines of a Ray cluster (`ray`). `auto`
    measures what is fastest on this machine."""
    stack: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """The number of clients that are trained at once as one stack; 0 trains one after the other. By default it is
    measured."""
    native: bool | None = None
    """Compute gradients with compiled kernels instead of PyTorch, for models that they support. By default `auto`
    measures it, `ray` measures it if `stack` is left open, `threads` uses them, and the other kinds do not."""
    channels_last: bool | None = None
    """Store images pixel by pixel (PyTorch's `channels_last`) if clients are trained one after the other. By default it
    is measured."""
    workers: Annotated[int, Field(gt=0, le=4096)] | None = None
    """The number of worker processes or threads. The default is one per core. With `ray`, it is as many as the cluster
    has room for."""
    address: str | None = None
    """With `ray`, the cluster: `HOST:PORT` of its head, or `auto` for the one that this machine belongs to. By default
    the run starts a cluster on this machine and stops it at the end."""
    cpus: Annotated[float, Field(gt=0, le=4096)] | None = None
    """With `ray`, the CPUs that each worker reserves. The default is 1. Native kernels use as many threads."""
    gpus: Annotated[float, Field(gt=0, le=64)] | None = None
    """With `ray`, the GPUs that each worker reserves, which may be a fraction such as 0.25. Workers then train on the
    GPU. By default they train on the CPU."""
    memory: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """With `ray`, the memory in GB that each worker reserves. By default it reserves none."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.stack is not None and self.kind == "serial" and self.stack > 0:
            raise InputError(f"executor.stack must be 0 with executor.kind=serial; got {self.stack}")
        if self.stack == 0 and self.kind in ("vectorised", "threads"):
            raise InputError(f"executor.stack must be 1 or more with executor.kind={self.kind}; got 0")
        if self.channels_last and (self.native or self.kind == "threads"):
            raise InputError("executor.channels_last does not go with native training; keep one of the two")
        if self.channels_last and (self.stack or self.kind == "vectorised"):
            raise InputError("executor.channels_last does not go with stacks; remove it or set executor.stack=0")
        if self.kind == "threads" and self.native is False:
            raise InputError("executor.native must be true with executor.kind=threads; got false")
        if self.workers is not None and self.kind in ("serial", "vectorised"):
            raise InputError(
                f"executor.workers needs executor.kind=processes, threads or ray, but {self.kind} is chosen; remove it "
                "or choose another kind"
            )
        for field in ("address", "cpus", "gpus", "memory"):
            if getattr(self, field) is not None and self.kind != "ray":
                raise InputError(
                    f"executor.{field} needs executor.kind=ray, but {self.kind} is chosen; remove it or choose ray"
                )
        if self.gpus and self.native:
            raise InputError("executor.native does not go with executor.gpus, as kernels use the CPU; keep one of them")
        if (self.gpus or 0) > 1 and self.gpus != int(self.gpus or 0):
            raise InputError(f"executor.gpus must be a whole number or less than 1; got {self.gpus:g}")
        if self.address is not None:
            check_address(self.address)
        return self

    @property
    def completed(self) -> ExecutorSettings:
        """With what follows from the kind that was asked for by name."""
        follows: dict[str, int | bool] = {}
        if self.native is None and (self.stack is not None or self.gpus if self.kind == "ray" else self.kind != "auto"):
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


def check_address(address: str) -> None:
    """Refuse what is no address of a Ray cluster."""
    host, _, port = address.rpartition(":")
    if address == "auto" or (host and "/" not in host and port.isdecimal() and 0 < int(port) < 65536):
        return
    if address.startswith("ray://"):
        raise InputError(
            "executor.address: ray:// is the address of a Ray client, which cannot be used; run fedkeel on a machine "
            "of the cluster, and give HOST:PORT of its head or auto"
        )
    raise InputError(f"executor.address must be HOST:PORT, such as 10.0.0.1:6379, or auto; got {shown(address)}")
