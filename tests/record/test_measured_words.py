"""Metrics as people read them."""

import pytest

from fedkeel.record.measured import known


def test_which_way_is_better() -> None:
    assert [known(name).better for name in ("accuracy", "rmse", "r2", "loss")] == ["higher", "lower", "higher", "lower"]


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
    assert known(name).told(value) == words


def test_names_are_written_as_words() -> None:
    assert known("balanced_accuracy").words == "balanced accuracy"
