"""Which task, loss and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from fedkeel.config import usercode
from fedkeel.config.section import Section, Size
from fedkeel.errors import InputError, shown

Kind = Literal["classification", "binary", "multilabel", "regression", "sequence"]
"""`classification`: one of several classes. `binary`: yes or no, from one logit. `multilabel`: several yes or no.
`regression`: real numbers. `sequence`: a class for each token, or the next token."""
LOSSES: dict[str, tuple[str, ...]] = {
    "classification": ("cross_entropy",),
    "binary": ("binary_cross_entropy",),
    "multilabel": ("binary_cross_entropy",),
    "regression": ("mse", "mae", "huber"),
    "sequence": ("cross_entropy",),
}
"""The losses of each task; the first is the default."""
_OTHER_NAMES = {
    "ce": "cross_entropy",
    "crossentropy": "cross_entropy",
    "bce": "binary_cross_entropy",
    "squared_error": "mse",
    "l2": "mse",
    "absolute_error": "mae",
    "l1": "mae",
}


class EarlyStoppingSettings(Section):
    """When a run ends because it has stopped getting better, on the validation set where there is one."""

    patience: Annotated[int, Field(gt=0, le=1_000_000)] | None = None
    """Evaluations without a better `target_metric` after which the run ends; by default it does not end early."""
    min_delta: Annotated[float, Field(ge=0, le=1e38)] = 0.0
    """How much better the metric must be to count as better."""


class LossSettings(Section):
    """What is minimised: a loss by its name, or a function of the user's, `module:name`."""

    name: str = "auto"
    """The loss: `cross_entropy`, `binary_cross_entropy`, `mse`, `mae`, `huber`, or `module:name`; by default that of
    the task. A function of yours is called with the model's outputs and the targets of a mini-batch. It returns one
    loss per sample, or their mean."""
    reduction: Literal["auto", "sample", "mean"] = "auto"
    """Whether a function of yours returns one loss per `sample` or their `mean`; by default that is tried out before
    the first round. With a mean, clients train one by one."""
    class_weights: Literal["balanced", "balanced-per-client"] | tuple[Size, ...] | None = None
    """What the samples of each class count: a list, or `balanced` so that all classes count alike, by the counts of all
    clients together; `balanced-per-client` uses each client's own counts. Of classification and binary tasks."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The share of a target that is spread evenly over all classes. Of cross-entropies."""
    delta: Size = 1.0
    """The size of an error beyond which `huber` grows linearly."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if usercode.is_own(name):
            return name
        plain = name.strip().lower().replace("-", "_").replace(" ", "_")
        plain = _OTHER_NAMES.get(plain, plain)
        known = ["auto", *dict.fromkeys(each for names in LOSSES.values() for each in names)]
        if plain in known:
            return plain
        near = get_close_matches(plain, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(known)}, or module:name"
        raise InputError(f"loss.name: {shown(name)} is not known; {hint}")


def _named(function: Any) -> Any:
    """A function of the user's by the name under which it can be found again."""
    if isinstance(function, str) or not callable(function):
        return function
    return usercode.name_of(function, "metrics")


_MODULES = {
    "MSELoss": "mse",
    "L1Loss": "mae",
    "HuberLoss": "huber",
    "SmoothL1Loss": "huber",
    "CrossEntropyLoss": "cross_entropy",
    "BCEWithLogitsLoss": "binary_cross_entropy",
}


def spelled_loss(given: Any) -> Any:
    """A loss that is given by its name or as a function, as a section."""
    usual = _MODULES.get(type(given).__name__)
    if usual is not None:
        raise InputError(f"loss.name: {type(given).__name__}() is a module of PyTorch; give its name, loss={usual!r}")
    if callable(given) and not isinstance(given, Section):
        given = usercode.name_of(given, "loss.name")
    return {"name": given} if isinstance(given, str) else given


def _listed(given: Any) -> Any:
    if isinstance(given, str) or callable(given):
        given = [part.strip() for part in given.split(",")] if isinstance(given, str) else [given]
    return tuple(map(_named, given)) if isinstance(given, Sequence) else given


Metrics = Annotated[tuple[str, ...], BeforeValidator(_listed)]
"""Names of metrics, or functions of the user's."""
Loss = Annotated[LossSettings, BeforeValidator(spelled_loss)]
