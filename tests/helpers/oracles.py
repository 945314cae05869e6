"""The gradient oracle of one client of a small federation."""

import numpy as np
from torch import nn

from fedkeel.data.federated import FederatedData
from fedkeel.local.batches import Batches
from fedkeel.local.oracles.client import ClientOracle
from fedkeel.local.settings import LocalSettings
from fedkeel.params import FlatModel

RNG = np.random.default_rng(0)
DATA = FederatedData.from_clients(
    [(RNG.normal(size=(10, 4)), np.arange(10) % 3)] * 3, test=(RNG.normal(size=(3, 4)), [0, 1, 2])
)


def oracle(
    net: nn.Module, data: FederatedData = DATA, client: int = 0, round: int = 1, **local: object
) -> ClientOracle:
    """Of one job of a client, with these settings of `local`."""
    settings = LocalSettings(**local)  # type: ignore[arg-type]
    batches = Batches(data, settings, 7, [round], [client], [settings.epochs])
    return ClientOracle(FlatModel(net.train()), batches, settings, 7, round, client)
