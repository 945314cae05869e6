"""FedYogi (Reddi et al., ICLR 2021): Yogi on the server, whose v moves by no more than the square itself."""

from __future__ import annotations

from torch import Tensor

from fedkeel.methods.client import ClientRule
from fedkeel.methods.fedopt import Averaging
from fedkeel.methods.registry import method


class Yogi(Averaging):
    """v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)."""

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * (v - square).sign()


fedyogi = method("fedyogi", client=ClientRule, server=Yogi, about="Yogi on the server", cite="Reddi et al., ICLR 2021")
