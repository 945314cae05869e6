"""FedAdagrad (Reddi et al., ICLR 2021): Adagrad on the server."""

from __future__ import annotations

from torch import Tensor

from fedkeel.methods.client import ClientRule
from fedkeel.methods.fedopt import Adaptive
from fedkeel.methods.registry import method
from fedkeel.methods.types import Decay


class Adagrad(Adaptive):
    """v <- v + Delta^2, without momentum."""

    beta1: Decay = 0.0

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


fedadagrad = method(
    "fedadagrad", client=ClientRule, server=Adagrad, about="Adagrad on the server", cite="Reddi et al., ICLR 2021"
)
