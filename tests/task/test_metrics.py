"""Metrics against scikit-learn and counts by hand."""

import numpy as np
import pytest
import torch
from sklearn import metrics as known

from fedkeel import InputError
from fedkeel.task.metrics import KNOWN
from fedkeel.task.settings import LossSettings
from fedkeel.task.task import Task, new_task

RNG = np.random.default_rng(0)
N = 300


def task(kind: str, *names: str) -> Task:
    return new_task(kind, LossSettings(), names)  # type: ignore[arg-type]


def rounded(shape: tuple[int, ...], step: float = 0.5) -> np.ndarray:  # type: ignore[type-arg]
    """With many ties."""
    return np.round(RNG.normal(size=shape) / step) * step


@pytest.mark.parametrize("ties", [False, True])
def test_of_one_answer(ties: bool) -> None:
    y = RNG.integers(0, 2, N)
    z = (rounded((N,)) if ties else RNG.normal(size=N)) + y
    p, said = 1 / (1 + np.exp(-z)), z > 0
    names = ("accuracy", "balanced_accuracy", "f1", "auroc", "auprc", "log_loss", "calibration_error")
    found = task("binary", *names).measure(torch.tensor(z), torch.tensor(y))
    expected = {
        "accuracy": known.accuracy_score(y, said),
        "balanced_accuracy": known.balanced_accuracy_score(y, said),
        "f1": known.f1_score(y, said),
        "auroc": known.roc_auc_score(y, z),
        "auprc": known.average_precision_score(y, z),
        "log_loss": known.log_loss(y, p),
        "calibration_error": calibration(p, y),
    }
    assert found == pytest.approx(expected, rel=1e-12)


def calibration(confidence: np.ndarray, right: np.ndarray) -> float:  # type: ignore[type-arg]
    """Bin by bin."""
    total = 0.0
    for low, high in zip(np.arange(15) / 15, np.arange(1, 16) / 15, strict=True):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            total += inside.sum() * abs(confidence[inside].mean() - right[inside].mean())
    return total / len(right)


def test_of_several_classes() -> None:
    y = RNG.integers(0, 6, N)
    z = RNG.normal(size=(N, 6)) + 1.5 * np.eye(6)[y]
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    said = z.argmax(1)
    names = ("accuracy", "top5", "balanced_accuracy", "f1", "auroc", "auprc", "log_loss", "calibration_error")
    found = task("classification", *names).measure(torch.tensor(z), torch.tensor(y))
    assert found == pytest.approx(
        {
            "accuracy": known.accuracy_score(y, said),
            "top5": known.top_k_accuracy_score(y, z, k=5),
            "balanced_accuracy": known.balanced_accuracy_score(y, said),
            "f1": known.f1_score(y, said, average="macro"),
            "auroc": known.roc_auc_score(y, p, multi_class="ovr"),
            "auprc": np.mean([known.average_precision_score(y == c, p[:, c]) for c in range(6)]),
            "log_loss": known.log_loss(y, p),
            "calibration_error": calibration(p.max(1), said == y),
        },
        rel=1e-12,
    )
    by_class = task("classification", "accuracy", "f1").by_class(torch.tensor(z), torch.tensor(y))
    assert by_class["accuracy"] == pytest.approx(known.recall_score(y, said, average=None))
    assert by_class["f1"] == pytest.approx(known.f1_score(y, said, average=None))


def test_of_several_labels() -> None:
    y = RNG.integers(0, 2, (N, 4))
    z = RNG.normal(size=(N, 4)) + y
    found = task("multilabel", "f1", "auroc", "auprc", "log_loss", "accuracy").measure(torch.tensor(z), torch.tensor(y))
    p = 1 / (1 + np.exp(-z))
    assert found == pytest.approx(
        {
            "f1": known.f1_score(y, z > 0, average="macro"),
            "auroc": known.roc_auc_score(y, z, average="macro"),
            "auprc": known.average_precision_score(y, z, average="macro"),
            "log_loss": np.mean([known.log_loss(y[:, i], p[:, i]) for i in range(4)]),
            "accuracy": ((z > 0) == y).mean(),
        },
        rel=1e-12,
    )


def test_of_each_label() -> None:
    y = np.array([[1, 0], [1, 0], [0, 0], [0, 1]])
    z = np.array([[1.0, -1.0], [-1.0, -1.0], [-1.0, -1.0], [-1.0, -1.0]])
    found = task("multilabel", "accuracy", "balanced_accuracy").by_class(torch.tensor(z), torch.tensor(y))
    assert found == {"accuracy": [0.75, 0.75], "balanced_accuracy": [0.75, 0.5]}


@pytest.mark.parametrize("numbers", [1, 3])
def test_of_real_numbers(numbers: int) -> None:
    y = RNG.normal(size=(N, numbers)) * np.arange(1, numbers + 1)
    z = y + RNG.normal(size=(N, numbers))
    shaped = torch.tensor(y if numbers > 1 else y[:, 0])
    found = task("regression", "mae", "mse", "rmse", "r2").measure(torch.tensor(z), shaped)
    assert found == pytest.approx(
        {
            "mae": known.mean_absolute_error(y, z),
            "mse": known.mean_squared_error(y, z),
            "rmse": known.root_mean_squared_error(y, z),
            "r2": known.r2_score(y, z),
        },
        rel=1e-12,
    )


def test_of_tokens() -> None:
    z = RNG.normal(size=(5, 7, 4))
    y = RNG.integers(0, 4, (5, 7))
    y[:, 5:] = -100
    found = task("sequence").measure(torch.tensor(z), torch.tensor(y))
    flat, labels = z[:, :5].reshape(-1, 4), y[:, :5].ravel()
    p = np.exp(flat) / np.exp(flat).sum(1, keepdims=True)
    assert found == pytest.approx(
        {"accuracy": (flat.argmax(1) == labels).mean(), "perplexity": np.exp(known.log_loss(labels, p))}
    )


@pytest.mark.parametrize("kind", ["classification", "binary", "multilabel", "regression", "sequence"])
def test_sums_over_batches_are_the_metrics_of_all(kind: str) -> None:
    shape = {
        "classification": (N, 6),
        "binary": (N,),
        "multilabel": (N, 3),
        "regression": (N, 2),
        "sequence": (N, 4, 6),
    }
    z = torch.tensor(RNG.normal(size=shape[kind]))
    y = torch.tensor(RNG.normal(size=(N, 2)))
    if kind != "regression":
        y = torch.tensor(RNG.integers(0, 6 if kind[1] == "e" or kind[0] == "c" else 2, z.shape[: 1 + (z.dim() > 2)]))
    if kind == "multilabel":
        y = torch.tensor(RNG.integers(0, 2, (N, 3)))
    form = {"binary": "answers", "multilabel": "answers", "regression": "numbers"}.get(kind, "classes")
    names = [name for name, metric in KNOWN.items() if metric.sums is not None and form in metric.forms]
    made = task(kind, *names)
    assert made.adds_up
    parts = [made.tally(z[i : i + 70], y[i : i + 70]) for i in range(0, N, 70)]
    loss, found = made.total(parts, N)
    assert found == pytest.approx(made.measure(z, y), rel=1e-9)
    assert loss == pytest.approx(float(made.loss.each(z, y).mean()), rel=1e-9)


def test_a_metric_that_is_not_defined_is_nan() -> None:
    one = torch.zeros(4, dtype=torch.int64)
    found = task("binary", "auroc", "auprc", "f1").measure(torch.randn(4), one)
    assert np.isnan(found["auroc"])
    assert np.isnan(found["auprc"])
    constant = task("regression", "r2").measure(torch.randn(4, 1), torch.ones(4))
    assert np.isnan(constant["r2"])


def test_names_are_understood_as_people_write_them() -> None:
    written = ("top-5", "Balanced Accuracy", "F1", "AUROC", "AUPRC", "log loss", "calibration error")
    expected = ("top5", "balanced_accuracy", "f1", "auroc", "auprc", "log_loss", "calibration_error")
    assert task("classification", *written).names == expected
    assert task("regression", "MAE", "RMSE", "R2").names == ("mae", "rmse", "r2")


@pytest.mark.parametrize(
    ("kind", "names", "words"),
    [
        ("regression", ["accuracy"], ["accuracy", "task=regression", "rmse"]),
        ("classification", ["acuracy"], ["did you mean accuracy"]),
        ("classification", ["rmse"], ["rmse", "task=classification"]),
        ("binary", ["auroc", "AUROC"], ["auroc", "twice"]),
        ("classification", ["nothing:there"], ["metrics", "nothing:there"]),
    ],
)
def test_metrics_that_do_not_fit(kind: str, names: list[str], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        task(kind, *names)
    for word in words:
        assert word in str(caught.value)
