import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedkeel import DivergenceError, Experiment, FederatedData, Result, RoundEnd, run


def data(sizes: list[int], classes: int = 3, seed: int = 0) -> FederatedData:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, 4)) * 5

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(0, classes, n)
        return centres[y] + rng.normal(size=(n, 4)), y

    return FederatedData.from_clients([draw(n) for n in sizes], test=draw(60))


def go(sizes: list[int], model: nn.Module | None = None, **settings: object) -> tuple[Result, list[RoundEnd]]:
    torch.manual_seed(0)
    ends: list[RoundEnd] = []
    result = run(Experiment(**settings), data=data(sizes), model=model or nn.Linear(4, 3), progress=ends.append)
    return result, ends


def test_it_learns() -> None:
    result, _ = go([30] * 8, rounds=10, per_round=4, local={"lr": 0.3})
    assert result.accuracy > 0.9
    assert result.history[-1].train_loss < result.history[0].train_loss


def test_every_round_samples_afresh_without_repetition() -> None:
    _, ends = go([10] * 12, rounds=6, per_round=5)
    rounds = [[a.client for a in end.arrivals] for end in ends]
    assert all(len(set(clients)) == 5 for clients in rounds)
    assert len({tuple(clients) for clients in rounds}) > 1
    assert set().union(*map(set, rounds)) <= set(range(12))


@pytest.mark.parametrize(("participation", "expected"), [(1.0, 12), (0.25, 3), (0.01, 1)])
def test_participation_is_a_share_of_the_clients(participation: float, expected: int) -> None:
    _, ends = go([10] * 12, rounds=1, participation=participation)
    assert len(ends[0].arrivals) == expected


def test_a_round_lasts_as_long_as_its_slowest_job() -> None:
    _, ends = go([10, 20, 30], rounds=2, per_round=3, fleet={"fastest_job_seconds": 8})
    # The average client has 20 samples, so 8 s; the largest takes 12 s.
    assert [end.virtual_seconds for end in ends] == pytest.approx([12, 24])
    assert {a.client: a.arrived for a in ends[0].arrivals} == pytest.approx({0: 4, 1: 8, 2: 12})
    assert [a.dispatched for a in ends[1].arrivals] == pytest.approx([12, 12, 12])


def test_bytes_and_updates_add_up() -> None:
    result, ends = go([10] * 6, rounds=3, per_round=2)
    model = 4 * (4 * 3 + 3)
    assert [(e.bytes_up, e.bytes_down, e.updates) for e in result.history] == [
        (2 * r * model, 2 * r * model, 2 * r) for r in (1, 2, 3)
    ]
    assert sum(a.bytes_up for end in ends for a in end.arrivals) == result.summary["bytes_up"]


def test_buffers_are_charged_too() -> None:
    result, _ = go([10] * 4, model=nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), rounds=1, per_round=2)
    assert result.summary["bytes_up"] == 2 * (4 * (8 + 15) + 4 * (4 + 4) + 8)  # the counter is int64


def test_rows_say_what_each_client_did() -> None:
    _, ends = go([10, 25, 5], rounds=2, per_round=3, local={"epochs": 2, "batch_size": 10, "lr": 0.5, "lr_decay": 0.5})
    last = ends[1].arrivals
    assert [a.steps for a in last] == [2, 6, 2]
    assert [a.samples for a in last] == [10, 25, 5]
    assert [a.weight for a in last] == pytest.approx([0.25, 0.625, 0.125])
    assert all(a.learning_rates == [0.25, 0.25] and a.epochs == 2 for a in last)
    assert all(a.start_version == 1 and a.staleness == 0 for a in last)
    seen = np.average([a.train_loss for a in last], weights=[10, 25, 5])
    assert ends[1].train_loss == pytest.approx(seen)


def test_train_loss_is_that_of_the_batches_as_they_were_seen() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    # A rate of almost zero leaves the model as it is, so the training loss is its plain loss.
    given = data([40])
    result = run(Experiment(rounds=1, local={"lr": 1e-12, "batch_size": 7}), data=given, model=model)
    plain = nn.functional.cross_entropy(model(given.train.x), given.train.y)
    assert result.history[0].train_loss == pytest.approx(plain.item(), rel=1e-5)


def test_evaluates_every_k_rounds_and_at_the_end() -> None:
    result, ends = go([10] * 3, rounds=7, evaluate_every=3)
    assert [e.round for e in result.history] == [3, 6, 7]
    assert [e.version for e in result.history] == [3, 6, 7]
    assert len(ends) == 7


@pytest.mark.slow
def test_stops_at_the_target() -> None:
    result, _ = go([30] * 8, rounds=50, per_round=4, local={"lr": 0.3}, target_accuracy=0.8, stop_at_target=True)
    assert result.history[-1].accuracy >= 0.8
    assert all(e.accuracy < 0.8 for e in result.history[:-1])
    assert result.summary["rounds_to_target"] == result.summary["rounds"] < 50
    assert result.summary["virtual_seconds_to_target"] == result.history[-1].virtual_seconds


def test_a_target_out_of_reach_is_null() -> None:
    result, _ = go([10] * 3, rounds=1, target_accuracy=1.0, local={"lr": 1e-9})
    assert result.summary["rounds_to_target"] is None
    assert result.summary["virtual_seconds_to_target"] is None


def test_server_lr_scales_the_step() -> None:
    torch.manual_seed(0)
    start = nn.Linear(4, 3)
    given = data([20] * 4)
    moved = []
    for server_lr in (1.0, 0.25):
        experiment = Experiment(rounds=1, per_round=2, algorithm={"name": "fedavg", "server_lr": server_lr})
        moved.append(run(experiment, data=given, model=start).model.weight - start.weight)
    torch.testing.assert_close(moved[1], 0.25 * moved[0], rtol=1e-4, atol=1e-6)


def test_clients_without_samples_are_never_asked() -> None:
    empty = (np.zeros((0, 4)), np.zeros(0, dtype=np.int64))
    full = data([10, 10])
    given = FederatedData.from_clients(
        [empty, (full.train.x[:10], full.train.y[:10]), empty, (full.train.x[10:], full.train.y[10:])],
        test=(full.test.x, full.test.y),
    )
    ends: list[RoundEnd] = []
    result = run(Experiment(rounds=3), data=given, model=nn.Linear(4, 3), progress=ends.append)
    assert all([a.client for a in end.arrivals] == [1, 3] for end in ends)
    assert ends[0].virtual_seconds == 10  # the average is that of clients who work
    assert np.isnan(result.evaluate_clients()).tolist() == [True, False, True, False]


def test_divergence_names_round_client_and_rate() -> None:
    with pytest.raises(DivergenceError, match=r"round \d+ on client \d+.*learning rate 1e\+38"):
        go([10] * 3, rounds=20, evaluate_every=20, local={"lr": 1e38})


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.dropout(x, 0.5, self.training))


@pytest.mark.slow
def test_same_seed_same_run_whatever_the_global_generator() -> None:
    torch.manual_seed(0)
    net = Noisy()

    def history(seed: int, noise: int) -> list[tuple[float, float]]:
        torch.manual_seed(noise)
        result = run(Experiment(rounds=3, seed=seed), data=data([15] * 5), model=net)
        assert torch.initial_seed() == noise  # the user's generator is left alone
        return [(e.loss, e.train_loss) for e in result.history]

    assert history(1, noise=5) == history(1, noise=6)
    assert history(1, noise=5) != history(2, noise=5)


def test_per_client_evaluation_uses_each_clients_own_labels() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    y = np.repeat([0, 1, 2], 20)
    clients = [(x[y == c], y[y == c]) for c in range(3)]
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([0.0, 9.0, 0.0]))  # always says class 1
    result = run(
        Experiment(rounds=1, local={"lr": 1e-12}, evaluate_clients=True),
        data=FederatedData.from_clients(clients, test=(x, y)),
        model=model,
    )
    assert result.evaluate_clients().tolist() == [0, 1, 0]
    assert result.evaluate_clients([1]).tolist() == [1]
    assert result.summary["client_accuracy_estimated"] == pytest.approx(
        {"mean": 1 / 3, "std": np.sqrt(2) / 3, "worst_decile": 0}
    )


class Explosive(nn.Module):
    """Finite in training, infinite in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) if self.training else self.head(x) * float("inf")


def test_a_global_model_that_is_not_finite_is_divergence() -> None:
    with pytest.raises(DivergenceError, match="round 1: the test loss is nan"):
        go([10] * 3, model=Explosive(), rounds=2)
