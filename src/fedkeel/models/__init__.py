"""The model zoo: every network that the papers train, each split into a `body` and a linear `head`."""

from fedkeel.models.classifier import Classifier
from fedkeel.models.inputs import Inputs
from fedkeel.models.zoo import build, complete, describe, names, option, options

__all__ = ["Classifier", "Inputs", "build", "complete", "describe", "names", "option", "options"]
