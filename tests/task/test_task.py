"""What a task says about outputs and functions that do not fit it."""

import pytest
import torch

from fedkeel import Experiment, InputError
from fedkeel.task.task import CLASSIFICATION


def test_a_model_of_one_logit_is_told_of_the_binary_task() -> None:
    y = torch.tensor([0, 1, 1])
    for z in (torch.zeros(3, 1), torch.zeros(3)):
        with pytest.raises(InputError, match=r"needs \[3, 2\].*; set task=binary for a model of one logit$"):
            CLASSIFICATION.check_outputs(z, y, 2, "training")
    with pytest.raises(InputError, match=r"needs \[3, 3\].*; change the last layer, or the task$"):
        CLASSIFICATION.check_outputs(torch.zeros(3, 1), y, 3, "training")


def test_a_lambda_is_named_without_its_address() -> None:
    with pytest.raises(InputError, match=r"^loss.name: <lambda> cannot be found again by its name; define it with def"):
        Experiment(task="regression", loss=lambda z, y: (z - y).abs())


def test_target_metrics_have_the_usual_names_too() -> None:
    assert Experiment(task="binary", target_metric="ROC-AUC", target=0.9).aim.metric == "auroc"
    assert Experiment(task="regression", target_metric="R2").target_metric == "r2"
    assert Experiment(task="regression", target_metric="loss").aim.metric == "loss"
    with pytest.raises(InputError, match=r"^target_metric='mae' needs a metric that is measured; add mae to metrics"):
        Experiment(task="regression", target_metric="MAE")
    with pytest.raises(InputError, match=r"^target_accuracy needs the metric accuracy, .* target_metric=rmse or r2$"):
        Experiment(task="regression", target_accuracy=0.9)
