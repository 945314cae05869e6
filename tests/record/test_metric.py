"""The main metric of an evaluation, as people read it."""

import pytest

from fedkeel.record.metric import Metric, main_metric, spelled, told
from fedkeel.record.rows import Evaluation

ROW = {"round": 1, "version": 1, "virtual_seconds": 1.0, "wall_seconds": 1.0, "accuracy": 0.25, "loss": 2.0,
       "bytes_up": 1, "bytes_down": 1, "updates": 1}  # fmt: skip


def test_the_first_metric_of_an_evaluation_is_the_main_one() -> None:
    assert main_metric(Evaluation.read(ROW)) == Metric("accuracy", 0.25, True)
    error = {**{name: value for name, value in ROW.items() if name != "accuracy"}, "rmse": 0.5, "r2": 0.1}
    assert main_metric(Evaluation.read(error)) == Metric("rmse", 0.5, False)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("accuracy", 0.93214, "93.21%"), ("auroc", 0.5, "50.00%"), ("rmse", 2.10449, "2.104"),
        ("log_loss", 0.25, "0.25"), ("mae", 51941.4, "51941"), ("mae", 99999.6, "100000"),
        ("mae", 1234567.0, "1234567"), ("mse", 2698067627.0, "2.698e+09"), ("mae", 0.00123456, "0.001235"),
        ("r2", -12345.6, "-12346"), ("mae", 999.96, "1000"),
    ],
)  # fmt: skip
def test_only_shares_are_written_in_percent(name: str, value: float, words: str) -> None:
    assert told(name, value) == words


def test_names_are_written_as_words() -> None:
    assert spelled("balanced_accuracy") == "balanced accuracy"
