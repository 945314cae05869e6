"""The one module class that every model of the zoo is."""

from __future__ import annotations

from torch import Tensor, nn


class Classifier(nn.Module):
    """A `body` that maps a batch to features [n, F], and a linear `head` from those to logits [n, classes].

    The papers' final softmax is part of the cross-entropy loss, not of the model.
    """

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """The logits of a batch."""
        logits: Tensor = self.head(self.body(x))
        return logits


def project(model: Classifier, width: int) -> Classifier:
    """The same with MOON's projection, two fully connected layers, between body and head (Li et al., 2021)."""
    features = model.head.in_features
    projection = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, width))
    head = nn.Linear(width, model.head.out_features, bias=model.head.bias is not None)
    return Classifier(nn.Sequential(model.body, projection), head)
