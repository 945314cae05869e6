"""Bytes on the wire, known before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedkeel.errors import FedkeelError, shown
from fedkeel.methods.client import ClientRule
from fedkeel.methods.server import ServerRule
from fedkeel.methods.types import Message, Sends
from fedkeel.params import Layout, Part
from fedkeel.wire.transform import Chain

WITH_BUFFERS = ("all", "body")
"""Parts of a model that batch-norm statistics belong to."""


class Sizes:
    """What a model, an upload and the answer to a survey weigh, in bytes."""

    def __init__(
        self,
        client: ClientRule,
        server: ServerRule,
        layout: Layout,
        itemsize: int,
        wire: Chain,
        classes_held: Callable[[], Column],
    ) -> None:
        """`itemsize` is the size of a weight; `classes_held()` [N] counts the classes of each client's labels."""
        self._client, self._layout, self._classes_held = client, layout, classes_held
        self._itemsize, self._wire = itemsize, wire
        self.down = self._model(client.downloads, Chain())
        """The global model."""
        self._model_up = self._model(client.uploads, wire) + len(server.reports) * itemsize

    def uploads(self, clients: Column, received: Message) -> Column:
        """[m], the uploads of jobs."""
        return self._model_up + self._beside(self._client.sends(self._layout, received), clients, self._wire)

    def answers(self, clients: Column, received: Message) -> Column:
        """[m], the answers to a survey."""
        survey = self._client.survey
        assert survey is not None
        return self._beside(survey.sends(self._layout, received), clients, Chain())

    def _model(self, part: Part, wire: Chain) -> int:
        weights = wire.nbytes(int(self._layout.mask(part).sum()), self._itemsize, update=True)
        return weights + (self._layout.buffer_bytes if part in WITH_BUFFERS else 0)

    def _beside(self, sends: Mapping[str, Sends], clients: Column, wire: Chain) -> Column:
        """What goes up beside the weights; sums and counts are not changed on their way."""
        total = np.zeros(len(clients), dtype=np.int64)
        for name, each in sends.items():
            if not isinstance(each, Sends):
                raise FedkeelError(
                    f"the client rule's sends must give a Sends for each name, such as {name!r}: Sends(numbers); got "
                    f"{shown(each)}"
                )
            sent = wire if each.goes_through else Chain()
            nbytes = sent.nbytes(each.numbers, each.nbytes or self._itemsize, update=False)
            total += 0 if each.recorded else nbytes * (self._held[clients] if each.each_class else 1)
        return total

    @cached_property
    def _held(self) -> Column:
        return self._classes_held()


Column = NDArray[np.int64]
