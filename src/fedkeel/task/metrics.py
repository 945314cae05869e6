"""Metrics of a whole test set, of one client's rows or of one class, as scikit-learn defines them.

Every function is given what `Predictions` holds, as arrays of float64 and integers. A metric that is not defined, such
as the area under the ROC curve where all labels are the same, is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Better = Literal["higher", "lower"]
BINS = 15
"""Of the calibration error."""


@dataclass(frozen=True)
class Predictions:
    """Outputs and targets of n samples, in one of three forms.

    `classes`: outputs [n, C] are logits, targets [n] are classes. `answers`: outputs [n, L] are logits, targets [n, L]
    are 0 or 1. `numbers`: both are real numbers, [n, k].
    """

    form: Literal["classes", "answers", "numbers"]
    outputs: Array
    targets: Array

    def __len__(self) -> int:
        return len(self.targets)

    @cached_property
    def log_p(self) -> Array:
        """[n, C], logarithms of probabilities."""
        moved = self.outputs - self.outputs.max(1, keepdims=True)
        found: Array = moved - np.log(np.exp(moved).sum(1, keepdims=True))
        return found

    @cached_property
    def scores(self) -> Array:
        """[n, C] or [n, L], how likely each class or label is."""
        found: Array = np.exp(self.log_p) if self.form == "classes" else 0.5 + 0.5 * np.tanh(self.outputs / 2)
        return found

    @cached_property
    def truth(self) -> Array:
        """[n, C] or [n, L], whether each class or label holds."""
        if self.form == "answers":
            return self.targets.astype(bool)
        found: Array = self.targets[:, None] == np.arange(self.outputs.shape[1])
        return found

    @cached_property
    def said(self) -> Array:
        """[n, C] or [n, L], what the model says."""
        if self.form == "answers":
            return np.greater(self.outputs, 0)
        found: Array = self.outputs.argmax(1)[:, None] == np.arange(self.outputs.shape[1])
        return found


@dataclass(frozen=True)
class Metric:
    """A number that says how good predictions are."""

    name: str
    of: Callable[[Predictions], float]
    forms: tuple[str, ...]
    better: Better = "higher"
    share: bool = True
    """Whether it lies between 0 and 1, so that it reads well as a percentage."""
    by_class: Callable[[Predictions], Array] | None = None
    """[C] or [L], the same for each class or label."""
    sums: Callable[[Predictions], Array] | None = None
    """Numbers that add up over batches, one per row, from which `joined` makes the metric."""
    joined: Callable[[float], float] = lambda mean: mean
    """Of the mean of these numbers."""


def _additive(rows: Callable[[Predictions], Array], joined: Callable[[float], float]) -> Callable[[Predictions], float]:
    return lambda told: joined(float(rows(told).mean())) if len(told) else float("nan")


def hits(told: Predictions) -> Array:
    """[n], whether the likeliest class is right; of answers, the share that is right."""
    if told.form == "answers":
        return np.asarray((told.said == told.truth).mean(1))
    return np.asarray(told.outputs.argmax(1) == told.targets)


def _top(told: Predictions, k: int = 5) -> Array:
    """[n], whether fewer than k classes are as likely as the right one, or likelier."""
    own = np.take_along_axis(told.outputs, told.targets[:, None], axis=1)
    earlier = np.arange(told.outputs.shape[1]) < told.targets[:, None]
    before = (told.outputs > own) | ((told.outputs == own) & earlier)
    return np.asarray(before.sum(1) < k)


def surprise(told: Predictions) -> Array:
    """[n], minus the logarithm of the probability of what is true; of answers, their mean."""
    if told.form == "answers":
        signed = np.where(told.truth, told.outputs, -told.outputs)
        return np.asarray(np.logaddexp(0.0, -signed).mean(1))
    return np.asarray(-np.take_along_axis(told.log_p, told.targets[:, None], axis=1)[:, 0])


def recalls(told: Predictions) -> Array:
    """Of those that are of a class, the share that the model finds; NaN for a class that does not occur."""
    return _ratio((told.said & told.truth).sum(0), told.truth.sum(0))


def f1s(told: Predictions) -> Array:
    """Harmonic means of precision and recall; NaN for a class that neither occurs nor is predicted."""
    return _ratio(2 * (told.said & told.truth).sum(0), told.said.sum(0) + told.truth.sum(0))


def aurocs(told: Predictions) -> Array:
    """How often a sample of the class gets a higher score than another one, ties counting half."""
    positives = told.truth.sum(0)
    negatives = len(told) - positives
    ranks = np.stack([_ranks(column) for column in _ordering(told).T], axis=1)
    return _ratio((ranks * told.truth).sum(0) - positives * (positives + 1) / 2, positives * negatives)


def auprcs(told: Predictions) -> Array:
    """Average precision: the precision at each threshold, weighted by how much recall grows there."""
    return np.array([_average_precision(s, t) for s, t in zip(_ordering(told).T, told.truth.T, strict=True)])


def _ordering(told: Predictions) -> Array:
    """[n, C] or [n, L], what samples are ordered by; probabilities of answers may be rounded to one number."""
    return told.outputs if told.form == "answers" else told.scores


def _ranks(values: Array) -> Array:
    """From 1 on; equal values share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[place])


def _average_precision(scores: Array, truth: Array) -> float:
    if not truth.any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    found = np.cumsum(truth[order])
    last = np.r_[np.flatnonzero(np.diff(scores[order])), len(order) - 1]  # of equal scores, all or none are taken
    precision, recall = found[last] / (last + 1), found[last] / found[-1]
    return float((np.diff(recall, prepend=0.0) * precision).sum())


def _mean(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _f1(told: Predictions) -> float:
    """Of one label, its own; of several labels or classes, the mean, where an undefined label counts as 0."""
    values = f1s(told)
    return _mean(values) if told.form == "classes" else float(np.nan_to_num(values).mean()) if len(told) else np.nan


def _over_classes(each: Callable[[Predictions], Array]) -> Callable[[Predictions], float]:
    return lambda told: _mean(each(told)) if len(told) else float("nan")


def calibration_error(told: Predictions) -> float:
    """Mean distance between confidence and share of hits, over bins of equal width, weighted by their samples.

    Of several classes, the confidence is that of the likeliest; of answers, that of yes.
    """
    if not len(told):
        return float("nan")
    if told.form == "answers":
        confidence, right = told.scores.ravel(), told.truth.ravel()
    else:
        confidence, right = told.scores.max(1), hits(told)
    place = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    gaps = np.bincount(place, confidence, BINS) - np.bincount(place, right, BINS)
    return float(np.abs(gaps).sum() / len(confidence))


def _rmse(told: Predictions) -> float:
    errors = np.square(told.outputs - told.targets)
    return float(np.sqrt(errors.mean(0)).mean()) if len(told) else float("nan")


def _r2(told: Predictions) -> float:
    """Mean over the numbers of a sample of 1 - errors / variance; not defined where a number never varies."""
    if len(told) < 2:
        return float("nan")
    left = np.square(told.outputs - told.targets).sum(0)
    return _mean(1 - _ratio(left, np.square(told.targets - told.targets.mean(0)).sum(0)))


def _ratio(above: Array, below: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(below > 0, above / np.where(below > 0, below, 1), np.nan)


def _sum(name: str, forms: tuple[str, ...], rows: Callable[[Predictions], Array], **more: Any) -> Metric:
    joined = more.get("joined", lambda mean: mean)
    return Metric(name, _additive(rows, joined), forms, sums=rows, **more)


_CLASSES, _LABELS, _NUMBERS = ("classes",), ("classes", "answers"), ("numbers",)
KNOWN: dict[str, Metric] = {
    each.name: each
    for each in (
        _sum("accuracy", _LABELS, hits, by_class=lambda told: _agreement(told)),
        _sum("top5", _CLASSES, _top),
        Metric("balanced_accuracy", lambda told: _balanced(told), _LABELS, by_class=lambda told: _evenly(told)),
        Metric("f1", _f1, _LABELS, by_class=f1s),
        Metric("auroc", _over_classes(aurocs), _LABELS, by_class=aurocs),
        Metric("auprc", _over_classes(auprcs), _LABELS, by_class=auprcs),
        _sum("log_loss", _LABELS, surprise, better="lower", share=False),
        _sum("perplexity", _CLASSES, surprise, better="lower", share=False, joined=lambda mean: float(np.exp(mean))),
        Metric("calibration_error", calibration_error, _LABELS, better="lower"),
        _sum("mae", _NUMBERS, lambda t: np.abs(t.outputs - t.targets).mean(1), better="lower", share=False),
        _sum("mse", _NUMBERS, lambda t: np.square(t.outputs - t.targets).mean(1), better="lower", share=False),
        Metric("rmse", _rmse, _NUMBERS, better="lower", share=False),
        Metric("r2", _r2, _NUMBERS, share=False),
    )
}
OTHER_NAMES = {
    "acc": "accuracy",
    "top_5": "top5",
    "top5_accuracy": "top5",
    "roc_auc": "auroc",
    "auc": "auroc",
    "average_precision": "auprc",
    "ece": "calibration_error",
    "mean_absolute_error": "mae",
    "mean_squared_error": "mse",
    "root_mean_squared_error": "rmse",
    "f1_score": "f1",
    "cross_entropy": "log_loss",
}


def canonical(name: str) -> str:
    """The name that fedkeel has for a metric, or for the loss; other names stay as they are."""
    word = name.strip().lower().replace("-", "_").replace(" ", "_")
    word = OTHER_NAMES.get(word, word)
    return word if word in KNOWN or word == "loss" else name.strip()


def _balanced(told: Predictions) -> float:
    """Mean recall over the classes that occur; of answers, over yes and no and then over labels."""
    if not len(told):
        return float("nan")
    if told.form == "classes":
        return _mean(recalls(told))
    return _mean(_evenly(told))


def _evenly(told: Predictions) -> Array:
    """Of a class, its recall; of a label, the mean of the shares of yes and of no that the model finds."""
    if told.form == "classes":
        return recalls(told)
    denied = _ratio((~told.said & ~told.truth).sum(0), (~told.truth).sum(0))
    return np.array([_mean(pair) for pair in np.stack([recalls(told), denied]).T])


def _agreement(told: Predictions) -> Array:
    """Of a class, its recall; of a label, the share of samples for which the model is right."""
    return recalls(told) if told.form == "classes" else np.asarray((told.said == told.truth).mean(0))
