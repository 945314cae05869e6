"""Training in bfloat16 with weights in float32, against PyTorch's autocast by hand."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedkeel import Experiment, FederatedData, InputError, run, streams
from fedkeel.errors import FedkeelError
from fedkeel.local.build import Workshop
from fedkeel.local.settings import ExecutorSettings, LocalSettings
from fedkeel.methods.client import ClientRule
from fedkeel.params import FlatModel
from fedkeel.wire.orders import Order
from tests.helpers import federation

SEED, BATCH, LR = 3, 4, 0.1
HALF = {"precision": "bfloat16"}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    )


def data() -> FederatedData:
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 1, 6, 6)).astype(np.float32), rng.integers(0, 3, n)) for n in (12, 8)]
    return FederatedData.from_clients(parts, test=parts[0])


def trained(local: dict[str, Any], **executor: Any) -> Tensor:
    shop = Workshop(net(), data(), ClientRule(), LocalSettings(batch_size=BATCH, **local), SEED)
    flat = FlatModel(shop.module)
    orders = [Order(c, c, 1, 1, flat.w, flat.buffers, torch.full((1,), LR), {}, {}) for c in range(2)]
    settings = ExecutorSettings(**{"kind": "serial", **executor})
    return shop.executor(settings.completed).train(orders).columns["w"]


def by_hand(client: int) -> Tensor:
    """The module computes in bfloat16; weights, loss, gradients and steps are in float32."""
    module, federated = copy.deepcopy(net()).train(), data()
    parameters = [*module.parameters()]
    velocities = [torch.zeros_like(each) for each in parameters]
    own = federated.client(client)
    order = streams.permutations(streams.keys(SEED, "batches", 1, client, 0), len(own))[0]
    for some in np.array_split(order, range(BATCH, len(own), BATCH)):
        x, y = federated.train_batch(own[some])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = module(x)
        assert logits.dtype == torch.bfloat16
        gradients = torch.autograd.grad(cross_entropy(logits.float(), y), parameters)
        with torch.no_grad():
            for weight, velocity, gradient in zip(parameters, velocities, gradients, strict=True):
                weight -= LR * velocity.mul_(0.5).add_(gradient)
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def test_a_job_is_that_of_autocast() -> None:
    got = trained({"momentum": 0.5, **HALF})
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, torch.stack([by_hand(0), by_hand(1)]), rtol=1e-6, atol=1e-7)
    full = trained({"momentum": 0.5})
    assert 1e-5 < float((got - full).abs().max()) < 0.1


@pytest.mark.parametrize("algorithm", ["fedavg", "moon", "fedgh", "scaffold"])
def test_runs_of_models_with_batch_norm_and_dropout(algorithm: str) -> None:
    """MOON looks at features in training, and FedGH at their means."""
    parts = [(x[:8], y[:8]) for x, y in federation.clients() if len(y) >= 7]
    given = FederatedData.from_clients(parts, test=parts[0])
    local = {"batch_size": 4, "drop_last": True, **HALF}
    settings: dict[str, Any] = {"rounds": 2, "per_round": 2, "local": local, "executor": "serial"}
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.2), nn.Linear(4, 2))
    history = run(Experiment(algorithm=algorithm, **settings), data=given, model=module).history
    assert np.isfinite(history[-1].loss)


@pytest.mark.parametrize("executor", [{"kind": "vectorised"}, {"native": True}, "threads"])
def test_fast_paths_refuse_it(executor: Any) -> None:
    experiment = Experiment(rounds=1, per_round=2, local=HALF, executor=executor)
    with pytest.raises(InputError, match=r"local\.precision=bfloat16 needs autograd; (set|use) "):
        run(experiment, data=federation.data(), model=federation.net(4))


@pytest.mark.parametrize("settings", [{"kind": "vectorised", "stack": 2}, {"kind": "serial", "native": True}])
def test_no_executor_trains_in_float32_instead(settings: dict[str, Any]) -> None:
    with pytest.raises(FedkeelError, match=r"local\.precision=bfloat16 needs autograd"):
        trained(HALF, **settings)


def test_auto_trains_one_client_after_the_other() -> None:
    result = run(Experiment(rounds=1, per_round=3, local=HALF), data=federation.data(), model=federation.net(4))
    chosen = result.experiment.executor
    assert (chosen.stack, chosen.native) == (0, False)
    assert "bfloat16" in result.summary["why_not_native"]


def test_it_needs_weights_in_float32() -> None:
    with pytest.raises(InputError, match=r"^local\.precision needs dtype=float32; got dtype=float64; remove one"):
        Experiment(local=HALF, dtype="float64")
    with pytest.raises(InputError, match=r"^local\.precision"):
        Experiment(local={"precision": "float16"})
    assert torch.equal(trained({"precision": "float32"}), trained({}))


def test_channels_last_agrees_within_what_bfloat16_can_tell() -> None:
    """It rounds otherwise, by more than float32 may."""
    settings: dict[str, Any] = {"rounds": 1, "per_round": 2, "executor": {"kind": "serial", "channels_last": True}}
    local = {"batch_size": BATCH, **HALF}
    assert run(Experiment(local=local, **settings), data=data(), model=net()).history
    last, first = (trained(HALF, channels_last=each) for each in (True, False))
    assert float((last - first).norm()) < 0.05 * float((first - FlatModel(net()).w).norm())
