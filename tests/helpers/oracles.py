"""The gradient oracle of one client of a small federation."""

import numpy as np
from torch import Tensor, nn

from fedkeel.data.federated import FederatedData
from fedkeel.local.batches import Batches
from fedkeel.local.gradients.autograd import AutogradGradient
from fedkeel.local.oracle import BatchOracle
from fedkeel.local.settings import LocalSettings

RNG = np.random.default_rng(0)
DATA = FederatedData.from_clients(
    [(RNG.normal(size=(10, 4)), np.arange(10) % 3)] * 3, test=(RNG.normal(size=(3, 4)), [0, 1, 2])
)


def oracle(net: nn.Module, data: FederatedData = DATA, client: int = 0, round: int = 1, **local: object) -> BatchOracle:
    """Of one job of a client by autograd on this very network, with these settings of `local`."""
    settings = LocalSettings(**local)  # type: ignore[arg-type]
    batches = Batches(data, settings, 7, [round], [client], [settings.units])
    return BatchOracle(AutogradGradient(net), batches, settings)


def weights(net: nn.Module) -> Tensor:
    """[1, D], as they are now."""
    return nn.utils.parameters_to_vector(net.parameters()).detach().clone()[None]


def load(net: nn.Module, w: Tensor) -> None:
    """Take weights [1, D]; the network's parameters stay where they lie."""
    for parameter, part in zip(net.parameters(), w[0].split([p.numel() for p in net.parameters()]), strict=True):
        parameter.data.copy_(part.view_as(parameter))
