"""A task: what outputs and targets mean, the loss, and the metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedkeel.config import usercode
from fedkeel.errors import InputError, described, shown
from fedkeel.task import losses
from fedkeel.task.losses import IGNORED, Loss, one_logit
from fedkeel.task.metrics import KNOWN, Metric, Predictions, canonical
from fedkeel.task.pairing import check_pairing
from fedkeel.task.settings import LOSSES, Kind, LossSettings

DEFAULT_METRICS: dict[str, tuple[str, ...]] = {
    "classification": ("accuracy",),
    "binary": ("accuracy", "auroc"),
    "multilabel": ("f1", "auroc"),
    "regression": ("rmse", "r2"),
    "sequence": ("accuracy", "perplexity"),
}
_FORMS = {
    "classification": "classes",
    "sequence": "classes",
    "binary": "answers",
    "multilabel": "answers",
    "regression": "numbers",
}
LOSS = "loss"
"""The name under which the loss itself may be chosen as a target."""
RESERVED = {
    *("round", "version", "virtual_seconds", "wall_seconds", LOSS, "train_loss", "bytes_up", "bytes_down", "updates"),
    *(
        "local_accuracy",
        "validation",
        "clients",
        "clients_estimated",
        "by_class",
        "algorithm",
        "dataset",
        "model",
        "partition",
        "per_round",
    ),
    *("seed", "rounds", "task", "tested", "target", "target_metric", "parameters", "executor", "device", "threads"),
    *("metrics", "run", "scene", "variant", "state", "client", "name", "rows", "estimated", "finetuned"),
}
"""Names that a metric must not have, as rows of files or the summary have them for something else."""


@dataclass(frozen=True)
class OwnMetric:
    """A function of the user's: `metric(outputs, targets) -> float`, on tensors of all samples.

    Higher is better, unless the function says otherwise, `function.higher_is_better = False`, has the name of a metric
    that should be low, such as `rmse`, or is called an error, a loss or a cost.
    """

    name: str
    function: Any

    @property
    def better(self) -> str:
        """Which way."""
        low = {"error", "loss", "cost"} & {*self.name.lower().split("_")}
        usual = KNOWN[self.name].better == "higher" if self.name in KNOWN else not low
        said = getattr(self.function, "higher_is_better", None)  # torchmetrics says None where it does not know
        return "higher" if (usual if said is None else said) else "lower"

    share = False

    def __call__(self, z: Tensor, y: Tensor) -> float:
        """As the user's function has it."""
        try:
            found = self.function(z, y)
        except Exception as error:
            raise InputError(
                f"metrics: {self.name} failed ({usercode.said(error)}); correct it there: it is called with outputs "
                f"{list(z.shape)} and targets {list(y.shape)}"
            ) from error
        try:
            return float(found)
        except Exception:
            raise InputError(f"metrics: {self.name} must return one number; got {described(found)}") from None


@dataclass(frozen=True)
class Task:
    """What a model is trained for."""

    kind: Kind
    loss: Loss
    metrics: tuple[Metric | OwnMetric, ...]
    loss_name: str = "cross_entropy"

    @property
    def names(self) -> tuple[str, ...]:
        """Of the metrics; the first is the one by which models are compared."""
        return tuple(metric.name for metric in self.metrics)

    def better(self, name: str) -> str:
        """Whether `higher` or `lower` values of a metric are better; the loss is one, too."""
        return next((metric.better for metric in self.metrics if metric.name == name), "lower")

    @property
    def adds_up(self) -> bool:
        """Whether sums over batches are enough for all metrics."""
        return all(isinstance(metric, Metric) and metric.sums is not None for metric in self.metrics)

    @property
    def counts_hits(self) -> bool:
        """Whether hits and the plain cross-entropy of a softmax are all that is asked for."""
        return self.kind == "classification" and self.loss.softmax and self.names == ("accuracy",)

    # Predictions.

    def predictions(self, z: Tensor, y: Tensor) -> Predictions:
        """Outputs and targets as metrics see them; tokens that do not count are left out."""
        match self.kind:
            case "sequence":
                counted = y != IGNORED
                z, y = z[counted], y[counted]
            case "binary":
                z, y = one_logit(z, y)[:, None], y[:, None]
            case "regression":
                if z.numel() != y.numel():
                    raise InputError(
                        f"metrics: {self.names[0]} needs outputs of the targets' shape {list(y.shape)}; got "
                        f"{list(z.shape)}; give metrics of your own, module:function, for such outputs"
                    )
                z, y = (each.reshape(len(y), -1) for each in (z, y))
        form: Any = _FORMS[self.kind]
        return Predictions(form, z.double().cpu().numpy(), y.cpu().numpy())

    def tally(self, z: Tensor, y: Tensor) -> tuple[float, ...]:
        """(Loss, rows, sums of the metrics) of a batch, where these add up."""
        loss = float(self.loss.sum(z, y))
        if self.counts_hits:
            return loss, len(y), int((z.argmax(dim=1) == y).sum())
        told = self.predictions(z, y)
        return loss, len(told), *(float(np.sum(metric.sums(told))) for metric in self.metrics)  # type: ignore[union-attr, misc]

    def total(self, tallies: Sequence[tuple[float, ...]], samples: int) -> tuple[float, dict[str, float]]:
        """(Mean loss, metrics) from the tallies of all batches, in their order."""
        rows = sum(tally[1] for tally in tallies)
        found = {}
        for place, metric in enumerate(self.metrics, 2):
            assert isinstance(metric, Metric)
            found[metric.name] = metric.joined(sum(t[place] for t in tallies) / rows) if rows else float("nan")
        return sum(tally[0] for tally in tallies) / samples, found

    def measure(self, z: Tensor, y: Tensor) -> dict[str, float]:
        """The metrics of these outputs."""
        known = [each for each in self.metrics if isinstance(each, Metric)]
        told = self.predictions(z, y) if known else None
        return {each.name: each.of(told) if isinstance(each, Metric) else each(z, y) for each in self.metrics}  # type: ignore[arg-type]

    def by_class(self, z: Tensor, y: Tensor) -> dict[str, list[float | None]]:
        """The metrics that are defined for each class or label alone; of a binary task, for the answer yes."""
        told = self.predictions(z, y)
        found = {m.name: m.by_class(told) for m in self.metrics if isinstance(m, Metric) and m.by_class is not None}
        return {name: [plain(value) for value in values.tolist()] for name, values in found.items()}

    # Checks.

    def try_metrics(self, z: Tensor, y: Tensor) -> None:
        """Measure a few samples; refuses metrics of the user's that fail on them."""
        self.measure(z, y)
        for metric in self.metrics:
            if isinstance(metric, OwnMetric):
                check_pairing("metrics", metric.name, metric.function, z, y)

    def outputs(self, classes: int) -> int:
        """How many numbers a model of the zoo gives per sample."""
        return 1 if self.kind == "binary" else classes

    def check_outputs(self, z: Tensor, y: Tensor, classes: int, which: str) -> None:
        """Refuse outputs that do not fit the targets."""
        n, got = len(y), list(z.shape)
        match self.kind:
            case "classification":
                fits = z.dim() == 2 and len(z) == n and z.shape[1] >= classes
                wanted = f"[{n}, {classes}], as the labels run from 0 to {classes - 1}"
            case "binary":
                fits = got in ([n], [n, 1], [n, 2])
                wanted = f"[{n}] or [{n}, 1], one logit per sample"
            case "sequence":
                fits = z.dim() == 3 and z.shape[:2] == y.shape and z.shape[2] >= classes
                wanted = f"[{n}, {y.shape[1]}, {classes}], logits of {classes} classes for each token"
            case _:
                fits = z.numel() == y.numel() and len(z) == n
                wanted = f"{list(y.shape)}, as the targets have"
        if usercode.is_own(self.loss_name):  # outputs are what the user's loss makes of them
            fits = z.dim() > 0 and len(z) == n
            wanted = f"[{n}, ...], one row per sample"
        if not fits:
            one = self.kind == "classification" and classes == 2 and got in ([n], [n, 1])
            raise InputError(
                f"model: for {n} {which} samples its output has shape {got}, but task={self.kind} needs {wanted}; "
                + ("set task=binary for a model of one logit" if one else "change the last layer, or the task")
            )


CLASSIFICATION = Task("classification", losses.SOFTMAX, (KNOWN["accuracy"],))


def plain(value: float) -> float | None:
    """A number as JSON has it: nothing where it is not defined."""
    return None if np.isnan(value) else float(value)


def new_task(kind: Kind, settings: LossSettings, metrics: Sequence[str]) -> Task:
    """The task that the settings describe; the user's functions are imported."""
    check_task(kind, settings, metrics)
    name = loss_name(kind, settings)
    own = usercode.is_own(name)
    loss = losses.Own(_own_loss(name), settings.reduction != "mean") if own else _loss(kind, name, settings)
    found = tuple(_own_metric(each) if usercode.is_own(each) else KNOWN[each] for each in metric_names(kind, metrics))
    return Task(kind, loss, found, name)


def check_task(kind: Kind, settings: LossSettings, metrics: Sequence[str]) -> None:
    """Refuse a loss and metrics that do not fit the task, as far as that can be told without the user's functions."""
    name = loss_name(kind, settings)
    own = usercode.is_own(name)
    if not own and name not in LOSSES[kind]:
        fits = next(task for task, names in LOSSES.items() if name in names)
        raise InputError(
            f"loss.name: {name} does not fit task={kind}; use {' or '.join(LOSSES[kind])}, or set task={fits}"
        )
    if settings.class_weights is not None and (kind not in ("classification", "binary") or own):
        where = "a loss of your own" if own else f"task={kind}"
        raise InputError(f"loss.class_weights needs a built-in loss of a classification or binary task, not {where}")
    if settings.label_smoothing and not name.endswith("cross_entropy"):
        raise InputError(f"loss.label_smoothing needs a cross-entropy, not {name}; remove it")
    if settings.delta != LossSettings().delta and name != "huber":
        raise InputError(f"loss.delta needs loss.name=huber, not {name}; remove it")
    if settings.reduction != "auto" and not own:
        raise InputError(f"loss.reduction is for a loss of your own, not {name}; remove it")
    named = [usercode.short(each) for each in metric_names(kind, metrics)]
    repeated = next((each for place, each in enumerate(named) if each in named[:place]), None)
    if repeated:
        raise InputError(f"metrics: {repeated} is given twice; keep one of the two")
    reserved = next((each for each in named if each in RESERVED), None)
    if reserved:
        raise InputError(f"metrics: {reserved} is the name of something else in the results; rename your function")


def loss_name(kind: Kind, settings: LossSettings) -> str:
    """Of the loss, also where that is left to the task."""
    return LOSSES[kind][0] if settings.name == "auto" else settings.name


def metric_names(kind: Kind, metrics: Sequence[str]) -> tuple[str, ...]:
    """The metrics by the names that fedkeel has for them; by default those of the task."""
    return tuple(each if usercode.is_own(each) else _known(each, kind) for each in metrics or DEFAULT_METRICS[kind])


def _known(name: str, kind: Kind) -> str:
    word = canonical(name)
    fitting = [known for known, metric in KNOWN.items() if _FORMS[kind] in metric.forms]
    if word in fitting:
        return word
    if word in KNOWN:
        raise InputError(f"metrics: {word} is not defined for task={kind}; choose from {', '.join(fitting)}")
    near = get_close_matches(word, fitting, 1)
    hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(fitting)}, or give module:function"
    raise InputError(f"metrics: {shown(name)} is not known; {hint}")


def _loss(kind: Kind, name: str, settings: LossSettings) -> Loss:
    match name:
        case "cross_entropy":
            made = losses.TokenCrossEntropy if kind == "sequence" else losses.CrossEntropy
            return made(settings.label_smoothing)
        case "binary_cross_entropy":
            return losses.BinaryCrossEntropy(settings.label_smoothing)
        case "mse":
            return losses.squared()
        case "mae":
            return losses.absolute()
    return losses.huber(settings.delta)


def _own_loss(name: str) -> Any:
    found = usercode.find(name, "loss.name", "module:function")
    if isinstance(found, type) and issubclass(found, torch.nn.Module):
        found = usercode.guarded(found, name, "loss.name")
    usercode.check_call(found, name, "loss.name", ("outputs", "targets"))
    return found


def _own_metric(name: str) -> OwnMetric:
    function = usercode.find(name, "metrics", "module:function")
    if str(getattr(function, "__module__", "")).partition(".")[0] == "sklearn":
        raise InputError(
            f"metrics: {name} takes (y_true, y_pred), but metrics are called with (outputs, targets); write a function "
            f"of your own that calls it: def mine(outputs, targets): return {usercode.short(name)}(targets, ...)"
        )
    usercode.check_call(function, name, "metrics", ("outputs", "targets"))
    return OwnMetric(usercode.short(name), function)


def reduction_of(task: Task, z: Tensor, y: Tensor) -> Literal["sample", "mean"]:
    """Whether the user's loss gives one number per sample or their mean, as seen on a batch of at least two."""
    assert isinstance(task.loss, losses.Own)
    try:
        found = task.loss.function(z, y)
    except Exception as error:
        raise InputError(
            f"loss.name: {task.loss_name} failed on a mini-batch of {len(y)} samples ({usercode.said(error)}); correct "
            f"it there: it is called with outputs {list(z.shape)} and targets {list(y.shape)}"
        ) from error
    if not isinstance(found, Tensor) or not found.is_floating_point() or found.shape not in ((), (len(y),)):
        raise InputError(
            f"loss.name: {task.loss_name} must return one loss per sample, a tensor [{len(y)}], or their mean, a "
            f"tensor []; got {described(found)}"
        )
    if not bool(torch.isfinite(found).all()):
        raise InputError(
            f"loss.name: {task.loss_name} returned NaN or infinity on {len(y)} samples before any training; look for a "
            "division or a logarithm"
        )
    if found.dim() == 0 and _sums(task.loss.function, z, y, found):
        raise InputError(
            f"loss.name: {task.loss_name} returns the sum over a mini-batch; return the mean, or one loss per sample"
        )
    check_pairing("loss.name", task.loss_name, task.loss.function, z, y)
    return "sample" if found.dim() == 1 else "mean"


def _sums(function: Any, z: Tensor, y: Tensor, once: Tensor) -> bool:
    """Whether a loss of the same samples twice is twice the loss."""
    try:
        twice = function(torch.cat([z, z]), torch.cat([y, y]))
    except Exception:  # it may need batches of one size
        return False
    same = isinstance(twice, Tensor) and twice.shape == once.shape and bool(once.abs() > 1e-9)
    return same and torch.allclose(twice, 2 * once, rtol=1e-4)


def describe(values: Mapping[str, float]) -> dict[str, float | None]:
    """Metrics as rows have them."""
    return {name: plain(value) for name, value in values.items()}
