"""FedAdam (Reddi et al., ICLR 2021): Adam on the server."""

from __future__ import annotations

from torch import Tensor

from fedkeel.methods.client import ClientRule
from fedkeel.methods.fedopt import Averaging
from fedkeel.methods.registry import method


class Adam(Averaging):
    """v <- beta2 v + (1 - beta2) Delta^2."""

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


fedadam = method("fedadam", client=ClientRule, server=Adam, about="Adam on the server", cite="Reddi et al., ICLR 2021")
