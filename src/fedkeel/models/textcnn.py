"""Convolutions over words (Kim, 2014)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from fedkeel.models.classifier import Classifier
from fedkeel.models.inputs import Inputs
from fedkeel.models.layers import drop

_WIDTHS = (3, 4, 5)


def textcnn(inputs: Inputs, *, embedding: int = 100, filters: int = 100, dropout: float = 0.5) -> Classifier:
    """TextCNN (Kim, 2014): FedASMU on IMDb.

    Kim's filters and dropout; the embedding is learnt from scratch, hence smaller than his pre-trained 300.
    """
    assert inputs.vocabulary is not None
    words = Words(inputs.vocabulary, embedding, filters)
    body = nn.Sequential(words, *drop(dropout))
    return Classifier(body, nn.Linear(filters * len(_WIDTHS), inputs.classes))


class Words(nn.Module):
    """The strongest response of each filter anywhere in a text of int64 tokens [n, L], 0 being padding.

    Every text is framed by as much padding as the widest filter sees, so that one shorter than the filter
    is fine and the number of zeros that a batch adds does not change the result.
    """

    def __init__(self, vocabulary: int, embedding: int, filters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        with torch.no_grad():  # Kim's own scale: with PyTorch's unit variance plain SGD makes no headway
            self.embedding.weight[1:].uniform_(-0.25, 0.25)
        self.convolutions = nn.ModuleList(nn.Conv1d(embedding, filters, width) for width in _WIDTHS)

    def forward(self, tokens: Tensor) -> Tensor:
        """[n, L] to [n, filters * 3]."""
        frame = max(_WIDTHS)
        embedded = self.embedding(F.pad(tokens, (frame, frame))).transpose(1, 2)
        return torch.cat([F.relu(convolve(embedded).amax(2)) for convolve in self.convolutions], dim=1)
