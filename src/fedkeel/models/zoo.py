"""The zoo's table of models and the functions that look into it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fedkeel.errors import InputError, no_such_setting, shown, unknown
from fedkeel.models import small
from fedkeel.models.accepts import ARRAYS, OPTIONS, TOKENS, Accepts, Option, images
from fedkeel.models.alexnet import alexnet
from fedkeel.models.classifier import Classifier, project
from fedkeel.models.densenet import densenet121
from fedkeel.models.googlenet import googlenet
from fedkeel.models.inputs import Inputs
from fedkeel.models.resnet import resnet18, resnet20
from fedkeel.models.textcnn import textcnn
from fedkeel.models.vgg import vgg11

Factory = Callable[..., Classifier]

# The smallest image leaves every convolution something to see, and every batch norm at least 2 x 2 pixels, so
# that a client's last batch may hold a single sample.
_ZOO: dict[str, tuple[Factory, Accepts]] = {
    "linear": (small.linear, ARRAYS),
    "mlp-400": (small.mlp_400, ARRAYS),
    "mnist-cnn": (small.mnist_cnn, images(4)),
    "lenet5": (small.lenet5, images(12)),
    "lenet5-wide": (small.lenet5_wide, images(12)),
    "cifar10-cnn": (small.cifar10_cnn, images(8)),
    "cnn": (small.cnn, images(3)),
    "vgg11": (vgg11, images(17)),
    "resnet18": (resnet18, images(9)),
    "resnet20": (resnet20, images(5)),
    "alexnet": (alexnet, images(17)),
    "googlenet": (googlenet, images(5)),
    "densenet121": (densenet121, images(16)),
    "textcnn": (textcnn, TOKENS),
}


def names() -> list[str]:
    """Every model's name."""
    return list(_ZOO)


def describe(name: str) -> str:
    """One line: what the model is and which paper trains it."""
    return (inspect.getdoc(_find(name)[0]) or "").partition("\n")[0]


def options(name: str) -> dict[str, object]:
    """The model's options with their defaults."""
    parameters = inspect.signature(_find(name)[0]).parameters.values()
    own = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
    return {**own, "projection": None}


def option(name: str) -> Option:
    """What an option means, and which values it may have."""
    return OPTIONS[name]


def build(name: str, inputs: Inputs, **chosen: Any) -> Classifier:
    """The model fitted to `inputs`, its weights drawn from torch's global generator (the caller seeds it)."""
    factory, accepts = _find(name)
    if not accepts.holds(inputs):
        raise InputError(f"model.name: {name} needs {accepts.what}; got {inputs}")
    chosen = complete(name, chosen)
    projection = chosen.pop("projection")
    model = factory(inputs, **chosen)
    return model if projection is None else project(model, projection)


def complete(name: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The model's options, those not chosen at their defaults; refuses what the model does not offer."""
    offered = options(name)
    for option, value in chosen.items():
        if option not in offered:
            raise no_such_setting("model", option, name, offered)
        if not OPTIONS[option].holds(value):
            raise InputError(f"model.{option} must be {OPTIONS[option].what}; got {shown(value)}")
    return {**offered, **chosen}


def _find(name: str) -> tuple[Factory, Accepts]:
    if name not in _ZOO:
        raise unknown("model.name", name, _ZOO)
    return _ZOO[name]
