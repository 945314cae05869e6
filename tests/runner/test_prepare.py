"""What is checked before a run starts, with objects given in Python."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedkeel import Experiment, FederatedData, InputError, run
from fedkeel.runner.prepare import prepare

RNG = np.random.default_rng(0)
IMAGES = FederatedData.from_arrays(RNG.normal(size=(60, 1, 8, 8)), np.arange(60) % 3, clients=4, name="squares")
FLAT = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


def test_given_objects_are_named_in_the_record() -> None:
    result = run(Experiment(rounds=1), data=IMAGES, model=FLAT)
    assert result.summary["dataset"] == "custom:squares"
    assert result.summary["model"] == "custom:Sequential"
    assert result.experiment.clients == 4
    with pytest.raises(InputError, match=r"dataset\.name: 'custom:squares'.*run\(data=\.\.\.\)"):
        run(result.experiment)


def test_participants_are_checked_against_the_clients_there_are() -> None:
    many = FederatedData.from_arrays(RNG.normal(size=(60, 64)), np.arange(60) % 3, clients=40)
    assert run(Experiment(rounds=1, per_round=30), data=many, model=FLAT[1]).summary["per_round"] == 30
    with pytest.raises(InputError, match="per_round must be at most clients=20; got 30"):
        run(Experiment(rounds=1, per_round=30))


def test_zoo_models_fit_own_data_and_start_from_the_seed() -> None:
    def weights(seed: int) -> torch.Tensor:
        experiment = Experiment(rounds=1, seed=seed, model="linear", local={"lr": 1e-12})
        return run(experiment, data=IMAGES).model.head.weight  # type: ignore[union-attr, return-value]

    assert weights(1).shape == (3, 64)
    torch.testing.assert_close(weights(1), weights(1), rtol=0, atol=0)
    assert not torch.allclose(weights(1), weights(2))


def test_resizing_and_augmentation_apply_to_given_data() -> None:
    experiment = Experiment(rounds=1, model="linear", dataset={"resize": 16, "augment": "crop-flip"})
    result = run(experiment, data=IMAGES)
    assert result.data.shape == (1, 16, 16)
    assert result.data.augment
    assert result.experiment.dataset.resize == 16
    assert result.summary["parameters"] == 256 * 3 + 3


def test_given_data_is_not_scaled() -> None:
    with pytest.raises(
        InputError, match=r"dataset\.normalise must be standard, because your own data is taken as it is"
    ):
        run(Experiment(rounds=1, model="linear", dataset={"normalise": "unit"}), data=IMAGES)


@pytest.mark.parametrize(("normalise", "top"), [("unit", 1.0), ("none", 255.0)])
def test_a_run_trains_on_images_as_they_are_scaled(normalise: str, top: float) -> None:
    _, data, _ = prepare(Experiment(dataset={"normalise": normalise, "train_limit": 100, "test_limit": 50}))
    for part in (data.train, data.test):
        assert (part.x.min(), part.x.max()) == (0, top)
        assert float((part.x * (255 / top)).frac().abs().max()) == pytest.approx(0, abs=1e-4)


def test_limits_draw_a_part_of_a_named_data_set() -> None:
    settings = {"train_limit": 100, "test_limit": 50}
    result = run(Experiment(rounds=1, model="linear", clients=5, dataset=settings, partition="iid"))
    assert (len(result.data.train.y), len(result.data.test.y)) == (100, 50)
    assert result.data.sizes.tolist() == [20] * 5


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(64, 64, bias=False)
        self.more = nn.Linear(64, 64, bias=False)
        self.more.weight = self.body.weight
        self.register_buffer("large", torch.tensor([2**31 + 1]))
        self.head = nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.more(torch.relu(self.body(x.flatten(1)))))


def test_tied_weights_and_large_integers_come_through(tmp_path: Path) -> None:
    result = run(Experiment(rounds=1), tmp_path / "run", data=IMAGES, model=Tied())
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert torch.equal(saved["body.weight"], saved["more.weight"])
    assert result.model.more.weight is result.model.body.weight
    assert saved["large"].item() == 2**31 + 1
    assert result.summary["parameters"] == 64 * 64 + 64 * 3 + 3


def test_clients_that_cannot_be_tested_have_no_accuracy() -> None:
    untested = FederatedData.from_clients([(np.zeros((4, 64)), [2] * 4)], test=(np.zeros((2, 64)), [0, 1]))
    result = run(Experiment(rounds=1, evaluate_clients=True), data=untested, model=FLAT[1])
    assert result.summary["client_accuracy_estimated"] is None


def test_threads_are_as_asked_and_put_back() -> None:
    before, during = torch.get_num_threads(), []
    run(
        Experiment(rounds=1, threads=3),
        data=IMAGES,
        model=FLAT,
        progress=lambda _: during.append(torch.get_num_threads()),
    )
    assert during == [3]
    assert torch.get_num_threads() == before


def test_a_model_is_tried_with_the_threads_it_will_train_with() -> None:
    seen = []

    class Watching(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            seen.append(torch.get_num_threads())
            return super().forward(x)  # type: ignore[no-any-return]

    before = torch.get_num_threads()
    prepare(Experiment(threads=3), IMAGES, Watching(nn.Flatten(), nn.Linear(64, 3)))
    assert (set(seen), torch.get_num_threads()) == ({3}, before)


def test_what_is_no_experiment_data_or_model_is_refused() -> None:
    for field, call in {
        "experiment": lambda: run({"rounds": 1}),  # type: ignore[arg-type]
        "data": lambda: run(Experiment(), data=(1, 2)),  # type: ignore[arg-type]
        "model": lambda: run(Experiment(), model=nn.Linear),  # type: ignore[arg-type]
    }.items():
        with pytest.raises(InputError, match=f"^{field} must be .*, such as .*; got "):
            call()


class Three(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w.expand(len(x), 1, 3)


class Odd(nn.Module):
    """Does something wrong with its output, in one of its two modes."""

    def __init__(self, mode: bool, spoil: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.head, self.mode, self.spoil = nn.Linear(64, 3), mode, spoil

    def forward(self, x: torch.Tensor) -> object:
        logits = self.head(x.flatten(1))
        return self.spoil(logits) if self.training is self.mode else logits


@pytest.mark.parametrize(
    ("settings", "model", "words"),
    [
        ({"clients": 5}, FLAT, ["clients", "5", "4"]),
        ({"partition": "shards"}, FLAT, ["partition.kind=shards needs data that is not yet dealt out"]),
        ({"dataset": {"train_limit": 9}}, FLAT, ["dataset.train_limit=9 needs data that is not yet dealt"]),
        ({"per_round": 5}, FLAT, ["per_round", "5", "clients=4"]),
        ({}, nn.Linear(7, 3), ["model", "fails on a training batch of shape", "RuntimeError"]),
        ({}, nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), ["[12, 2]", "[12, 3]", "0 to 2"]),
        ({}, Three(), ["[12, 1, 3]"]),
        ({"local": {"batch_size": 11}}, nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), FLAT[1]), ["[1, 1, 8, 8]"]),
        ({}, Odd(True, lambda y: y.detach()), ["no gradient"]),
        ({}, Odd(True, lambda y: y.long()), ["one floating-point tensor; got a tensor [12, 3] of int64"]),
        ({}, Odd(False, lambda y: (y, y)), ["test batch must be one floating-point tensor; got (a tensor"]),
        ({}, Odd(False, lambda y: y[:, :2]), ["test samples", "[2, 2]", "[2, 3]"]),
        ({"model": "vgg11"}, None, ["model.name: vgg11 needs images", "at least 17 x 17 pixels; got shape (1, 8, 8)"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(settings: dict[str, object], model: nn.Module | None, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        run(Experiment(rounds=1, **settings), data=IMAGES, model=model)
    for word in words:
        assert word in str(caught.value)
