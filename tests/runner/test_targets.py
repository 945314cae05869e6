"""Targets and weights at sites of their own, against those of all rows together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedkeel import FederatedData
from fedkeel.data.datasets import Examples
from fedkeel.data.pool import pooled_total
from fedkeel.errors import FedkeelError
from fedkeel.runner.targets import check_numbering, fitted, label_totals
from fedkeel.task.settings import Kind
from tests.helpers.sites import same_rows

NAMES = ("Bern", "Genf", "Ulm")


def data(classes: int) -> FederatedData:
    """The first client lacks class 0, the others the last one."""
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 2)), np.arange(n) % (classes - 1) + (not i)) for i, n in enumerate((7, 20, 34))]
    return FederatedData.from_clients(parts, client_names=NAMES)


@pytest.mark.parametrize(("kind", "classes"), [("classification", 4), ("binary", 2)])
def test_balanced_weights_come_from_the_labels_of_all_sites(kind: Kind, classes: int) -> None:
    all_ = data(classes)
    whole = fitted(all_, kind, "balanced")
    assert whole.weight is not None
    assert len(whole.weight.unique()) > 1
    sites = [fitted(all_.alone(client), kind, None) for client in range(3)]
    counts = pooled_total([label_totals(site) for site in sites], NAMES)
    for client in range(3):
        same_rows(fitted(all_.alone(client), kind, "balanced", counts), whole, client)
        with pytest.raises(FedkeelError, match="needs the labels of all sites"):
            fitted(all_.alone(client), kind, "balanced")


@pytest.mark.parametrize("weights", ["balanced-per-client", [1.0, 2.5, 3.0, 0.5]])
def test_other_weights_need_nobody_else(weights: str | list[float]) -> None:
    whole = fitted(data(4), "classification", weights)
    for client in range(3):
        same_rows(fitted(data(4).alone(client), "classification", weights), whole, client)


def test_a_site_may_lack_classes_and_test_rows() -> None:
    site = data(4).alone(0)
    check_numbering(site)
    with pytest.raises(FedkeelError, match="counted from 0"):
        check_numbering(replace(site, site=None))


def test_classes_of_tokens_are_those_that_have_names() -> None:
    y = torch.zeros(4, 3, dtype=torch.int64)
    part = Examples(torch.zeros(4, 3), y)
    whole = FederatedData.from_clients([(part.x, part.y)] * 2)
    assert fitted(whole, "sequence", None).classes == 1
    named = replace(whole, classes=3, class_names=("a", "b", "c"))
    assert fitted(named.alone(1), "sequence", None).classes == 3
