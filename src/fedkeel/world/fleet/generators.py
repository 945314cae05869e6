"""Generated devices: how many times as long each takes as the fastest."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fedkeel import streams
from fedkeel.world.fleet.settings import FleetSettings

Column = NDArray[np.float64]


def speed_factors(settings: FleetSettings, clients: int, seed: int) -> Column:
    """[N], exactly 1 for the fastest and exactly the ratio for the slowest, dealt to devices in random order."""
    if settings.speed_ratio == 1 or clients == 1:
        return np.broadcast_to(1.0, clients)
    match settings.profile:
        case "uniform":
            factors = np.linspace(1.0, settings.speed_ratio, clients)
        case "lognormal":
            factors = settings.speed_ratio ** normal_shares(clients)
        case _:
            factors = settings.speed_ratio ** tier_shares(clients, settings.tiers)
    return factors[streams.generator(seed, "fleet").permutation(clients)]


def normal_shares(clients: int) -> Column:
    """[N > 1], quantiles of a normal distribution at (i - 1/2) / N, moved and scaled to run from 0 to 1."""
    middles = (torch.arange(clients, dtype=torch.float64) + 0.5) / clients
    quantiles: Column = torch.special.ndtri(middles).numpy()
    shares: Column = (quantiles - quantiles[0]) / (quantiles[-1] - quantiles[0])
    return shares


def tier_shares(clients: int, tiers: int) -> Column:
    """[N > 1], evenly spaced from 0 to 1, the same within a tier; the sizes of tiers differ by at most one."""
    tiers = min(tiers, clients)
    return np.arange(clients) * tiers // clients / (tiers - 1)
