"""Targets as the task needs them, and what each sample counts in the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkeel.data.datasets import Examples
from fedkeel.data.federated import FederatedData
from fedkeel.data.validity import class_labels
from fedkeel.errors import FedkeelError, InputError, label
from fedkeel.task.losses import IGNORED
from fedkeel.task.settings import Kind


def fitted(
    data: FederatedData,
    kind: Kind,
    class_weights: str | Sequence[float] | None,
    counts: NDArray[np.int64] | None = None,
) -> FederatedData:
    """The data with targets of the type that the task needs; refuses targets that do not fit it.

    On a site, `counts` are the training labels of all sites, as `sample_weights` takes them.
    """
    parts = {name: part for name in ("train", "test", "validation") if (part := getattr(data, name)) is not None}
    if kind == "regression" and data.class_names is not None and class_labels(data.train) is not None:
        raise InputError(
            f"y holds numbers of classes, {label(data.class_names[0])} being 0, but task=regression needs the numbers "
            "themselves; read the data with target_type=number"
        )
    changed = {name: Examples(part.x, _target(part.y, kind)) for name, part in parts.items()}
    y = changed["train"].y
    classes = data.classes
    if kind == "binary":
        classes = 2
    elif kind in ("multilabel", "regression"):
        classes = 1 if y.dim() == 1 else int(y.shape[1])
    elif kind == "sequence":
        known = 0 if data.class_names is None else data.classes
        classes = max([known, *(int(part.y.max()) + 1 for part in changed.values() if len(part))])
    if all(part.y is changed[name].y for name, part in parts.items()) and classes == data.classes:
        dealt = data
    else:
        dealt = replace(data, classes=classes, **changed)  # type: ignore[arg-type]
    return dealt if class_weights is None else replace(dealt, weight=sample_weights(dealt, class_weights, counts))


def _target(y: Tensor, kind: Kind) -> Tensor:
    """The targets, converted; [n] of classes, [n, labels], [n, length] or real numbers."""
    real, shape = y.is_floating_point(), list(y.shape)
    match kind:
        case "classification":
            if y.dim() == 2 and bool(((y == 0) | (y == 1)).all()) and bool((y.sum(1) == 1).all()):
                raise InputError(
                    f"y is one-hot, {shape}, but task=classification needs one class per sample; give y.argmax(1), or "
                    "set task=multilabel"
                )
            if real:
                raise InputError(
                    "y holds real numbers, but task=classification needs whole numbers from 0 on; set task=regression, "
                    "or convert y to integers, such as y.astype(int)"
                )
            if y.dim() != 1:
                raise InputError(
                    f"y has shape {shape}, but task=classification needs one class per sample; set task=multilabel for "
                    "several answers per sample, or task=sequence for a class per token"
                )
            return y
        case "binary":
            if y.dim() != 1 or not bool(((y == 0) | (y == 1)).all()):
                got = f"shape {shape}" if y.dim() != 1 else f"values from {y.min().item():g} to {y.max().item():g}"
                raise InputError(
                    f"y must be 0 or 1 for each sample, as task=binary; got {got}; convert it, such as y == y.max(), "
                    "or set another task"
                )
            return y.long() if real else y
        case "multilabel":
            if y.dim() != 2 or not bool(((y == 0) | (y == 1)).all()):
                raise InputError(
                    "y must be 0 or 1 for each sample and label, [samples, labels], as task=multilabel; got shape "
                    + str(shape)
                    + ("" if y.dim() != 2 else f" with values from {y.min().item():g} to {y.max().item():g}")
                )
            return y if real else y.float()
        case "regression":
            if y.dim() > 2:
                raise InputError(f"y must be [samples] or [samples, numbers], as task=regression; got shape {shape}")
            return y if real else y.float()
        case "sequence":
            if real or y.dim() != 2 or not bool(((y >= 0) | (y == IGNORED)).all()):
                raise InputError(
                    "y must be a class for each token, [samples, length], or -100 for a token that does not count, as "
                    f"task=sequence; got shape {shape} of {'real numbers' if real else 'whole numbers'}; to predict "
                    "the next token, give x[:, :-1] as x and x[:, 1:] as y"
                )
            return y


def check_numbering(data: FederatedData) -> None:
    """Refuse classes that cannot be meant: counted from 1, or numbers to be predicted that are taken for classes.

    A site of its own may well lack classes.
    """
    if data.site is not None:
        return
    held = [part.y for part in (data.train, data.test, data.validation) if part is not None]
    used = np.unique(torch.cat(held).cpu().numpy())
    if len(used) > 1 and used.tolist() == [*range(1, data.classes)]:
        raise InputError(
            f"y holds classes from 1 to {data.classes - 1}, but they are counted from 0; give y - 1, or set "
            "task=regression if these are numbers to predict"
        )
    samples = sum(map(len, held))
    if data.classes > samples:
        raise InputError(
            f"y holds classes up to {data.classes - 1}, more than there are samples ({samples}); set task=regression "
            "if these are numbers to predict, or number the classes with np.unique(y, return_inverse=True)[1]"
        )


def label_totals(data: FederatedData) -> NDArray[np.int64]:
    """[classes], the training samples of all clients that are here; sums over sites are what `sample_weights` takes."""
    return np.bincount(data.train.y.cpu().numpy()[data.assignment.indices], minlength=data.classes)


def sample_weights(
    data: FederatedData, class_weights: str | Sequence[float], counts: NDArray[np.int64] | None = None
) -> Tensor:
    """[training samples], by the class of each.

    Balanced: n / (classes * n_c), with the classes that occur, so that the mean over the samples is 1. On a site,
    `counts` are the `label_totals` of all sites together.
    """
    y = data.train.y.cpu().numpy()
    weights = np.ones(len(y))
    if class_weights == "balanced":
        if counts is None and data.site is not None:
            raise FedkeelError("loss.class_weights=balanced needs the labels of all sites; pool their label_totals")
        weights = _balanced(label_totals(data) if counts is None else counts)[y]
    elif class_weights == "balanced-per-client":
        if len(np.unique(data.assignment.indices)) < len(data.assignment.indices):
            raise InputError(
                "loss.class_weights=balanced-per-client needs samples that belong to one client each; use balanced"
            )
        for client in range(len(data)):
            rows = data.assignment[client]
            weights[rows] = _balanced(np.bincount(y[rows], minlength=data.classes))[y[rows]]
    else:
        if len(class_weights) != data.classes:
            raise InputError(
                f"loss.class_weights must have one number per class, {data.classes} in all; got {len(class_weights)}"
            )
        weights = np.asarray(class_weights, dtype=np.float64)[y]
    return torch.from_numpy(weights).to(torch.float32)


def _balanced(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    present = counts > 0
    return np.where(present, counts.sum() / (max(1, present.sum()) * np.maximum(counts, 1)), 1.0)
