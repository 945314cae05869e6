"""Numbers that are what they are called: validation rows decide, and targets are what the table says."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedkeel import Experiment, FederatedData, InputError, run
from fedkeel.task.task import OwnMetric

RNG = np.random.default_rng(1)
X = RNG.normal(size=(160, 6)).astype(np.float32)
Y = (X[:, 0] + 2 * RNG.normal(size=160) > 0).astype(int)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))


def settings(**more: Any) -> Experiment:
    return Experiment(**{"rounds": 6, "per_round": 2, "executor": "serial", "local": {"lr": 0.3}, **more})


def test_the_best_number_is_that_of_the_best_model() -> None:
    data = FederatedData.from_arrays(X, Y, clients=4, test=0.25, validation=0.25)
    result = run(settings(rounds=12), data=data, model=net())
    accuracies = [row.accuracy for row in result.history]
    validated = [row.validation["accuracy"] for row in result.history]  # type: ignore[index]
    place = int(np.argmax(validated))
    assert accuracies[place] != max(accuracies)  # so that the test set would have chosen another
    assert (result.summary["best_round"], result.summary["best_accuracy"]) == (place + 1, accuracies[place])
    assert result.best_model is not None
    with torch.no_grad():
        said = result.best_model.eval()(data.test.x).argmax(1)
    assert float((said == data.test.y).double().mean()) == pytest.approx(result.summary["best_accuracy"])


def test_models_of_clients_are_tuned_on_their_validation_rows() -> None:
    data = FederatedData.from_arrays(X, Y, clients=4, test=0.25, validation=0.25)
    result = run(settings(algorithm="fedgh", rounds=2), data=data, model=net())
    assert data.validation is not None
    assert data.validation_rows is not None
    right = []
    for client in range(4):
        rows = data.validation_rows[client]
        with torch.no_grad():
            said = result.client_model(client).eval()(data.validation.x[rows]).argmax(1)
        right.append(float((said == data.validation.y[rows]).double().mean()))
    last = result.history[-1].validation
    assert last is not None
    assert last["accuracy"] == pytest.approx(np.mean(right))
    assert result.summary["tuned_on"] == "validation"


def test_validation_is_held_out_of_data_that_is_given() -> None:
    data = FederatedData.from_arrays(X, Y, clients=4, test=0.25)
    result = run(settings(rounds=1, dataset={"validation": 0.25}), data=data, model=net())
    assert result.summary["tuned_on"] == "validation"
    assert len(result.data.train) + len(result.data.validation or ()) == len(data.train)
    twice = FederatedData.from_arrays(X, Y, clients=4, test=0.25, validation=0.1)
    with pytest.raises(InputError, match="validation rows already"):
        run(settings(dataset={"validation": 0.25}), data=twice, model=net())


def test_numbers_of_classes_are_no_numbers_to_predict() -> None:
    table = {"a": X[:, 0], "price": np.arange(160) % 4 * 1000}
    regression = settings(task="regression", rounds=1)
    classes = FederatedData.from_table(table, target="price", clients=4)
    with pytest.raises(InputError, match="target_type=number"):
        run(regression, data=classes, model=nn.Linear(1, 1))
    numbers = FederatedData.from_table(table, target="price", target_type="number", clients=4)
    assert run(regression, data=numbers, model=nn.Linear(1, 1)).metrics["rmse"] > 100  # type: ignore[operator]


@pytest.mark.parametrize("asked", [{"evaluate_clients": True}, {"finetune": {"epochs": 1}}])
def test_clients_that_cannot_be_tested_are_told_before_training(tmp_path: Path, asked: dict[str, Any]) -> None:
    data = FederatedData.from_arrays(X[:100], X[:100, 0], clients=2, test=(X[100:], X[100:, 0]))
    with pytest.raises(InputError, match="cannot be tested one by one"):
        run(settings(task="regression", **asked), tmp_path / "run", data=data, model=nn.Linear(6, 1))
    assert not (tmp_path / "run").exists()


def rmse(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean().sqrt()


def gain(outputs: Tensor, targets: Tensor) -> Tensor:
    return -rmse(outputs, targets)


def test_a_function_with_the_name_of_a_metric_has_its_direction() -> None:
    assert [OwnMetric(each.__name__, each).better for each in (rmse, gain)] == ["lower", "higher"]
    upside_down = type("Said", (), {"higher_is_better": True})()
    unknown = type("Said", (), {"higher_is_better": None})()  # as torchmetrics has it
    assert [OwnMetric("mae", each).better for each in (upside_down, unknown)] == ["higher", "lower"]


def test_target_metrics_have_other_names_and_shares_have_bounds() -> None:
    assert settings(task="binary", metrics=["roc_auc"], target_metric="roc_auc").target_metric == "auroc"
    assert settings(target_metric="Loss", target=90).aim.target == 90
    with pytest.raises(InputError, match=r"^target must be a value of accuracy above 0 and at most 1; got 90$"):
        settings(target=90)


@pytest.mark.parametrize("name", ["client", "name", "rows", "estimated", "finetuned"])
def test_a_metric_hides_no_column_of_the_file_of_clients(name: str) -> None:
    with pytest.raises(InputError, match="rename your function"):
        settings(metrics=["accuracy", f"somewhere:{name}"])


def test_metrics_of_clients_have_other_names() -> None:
    data = FederatedData.from_arrays(X, Y, clients=2, test=0.25)
    result = run(settings(task="binary", metrics=["auroc"], rounds=1), data=data, model=nn.Linear(6, 1))
    assert result.evaluate_clients(metric="roc_auc").tolist() == result.evaluate_clients().tolist()


@pytest.mark.parametrize(
    ("rare", "names", "sizes"),
    [("merge", ("A", "B", "others"), [4, 4, 6]), ("drop", ("A", "B"), [4, 4])],
)
def test_test_rows_follow_clients_that_are_merged_or_left_out(
    tmp_path: Path, rare: str, names: tuple[str, ...], sizes: list[int]
) -> None:
    def write(file: str, counts: dict[str, int]) -> str:
        rows = [f"{site},{number % 3},{number % 2}" for site, count in counts.items() for number in range(count)]
        (tmp_path / file).write_text("\n".join(["site,a,y", *rows]) + "\n")
        return str(tmp_path / file)

    train = write("train.csv", {"A": 20, "B": 20, "c": 5, "d": 5})
    test = write("test.csv", {"A": 4, "d": 3, "B": 4, "c": 3})
    partition = {"kind": "column", "min_samples": 10, "rare": rare}
    data = FederatedData.from_csv(train, target="y", client="site", test=test, partition=partition)
    assert data.client_names == names
    assert data.test_rows is not None
    assert data.test_rows.sizes.tolist() == sizes
    assert len(data.test) == sum(sizes)
