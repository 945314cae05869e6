"""What is said of errors in the user's code and of training that diverges: where it happened, and what to change."""

from pathlib import Path

import pytest

from fedkeel import DivergenceError, Experiment, run
from fedkeel.config import usercode
from fedkeel.methods import methods
from tests.helpers.commands import QUICK, fedkeel

MODULE = """
import torch
from fedkeel import Average, ClientRule, method
from torch import nn

class Tired(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(784, 10)
    def forward(self, x):
        return self.head(x.flatten(1)[:, :5])

class Late(ClientRule):
    def step(self, job, w, oracle):
        return oracle.grad(w) + torch.zeros(3 if int(job.round.max()) == 2 else 1)

late = method("late-{name}", client=Late, server=Average)

def broken():
    return 1 / 0
"""


@pytest.fixture
def module(tmp_path: Path) -> str:
    name = f"users_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODULE.replace("{name}", name))
    return name


@pytest.mark.parametrize(
    ("setting", "where"),
    [
        ("model={}:Tired", ".py, line 11, in forward: RuntimeError: mat1 and mat2 shapes"),
        ("model={}:broken", ".py, line 20, in broken: ZeroDivisionError: division by zero)"),
        ("dataset={}:broken", ".py, line 20, in broken: ZeroDivisionError: division by zero)"),
        ("algorithm={}:late", ".py, line 15, in step: RuntimeError: The size of tensor"),
    ],
)
def test_the_command_line_says_where_it_happened(setting: str, where: str, module: str, tmp_path: Path) -> None:
    settings = [each for each in QUICK if not each.startswith(setting.partition("=")[0])]
    done = fedkeel("run", "--set", *settings, "executor=serial", setting.format(module), cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert f"{module}{where}" in done.stderr
    told, _, way_on = done.stderr.partition("; add --debug to the command to see the traceback")
    assert told.count("in round 2") == ("late" in setting)
    assert way_on.startswith("; there is no checkpoint yet; start it again with: " if "late" in setting else "\n")
    assert "defect" not in done.stderr
    if "late" in setting:
        assert done.stderr.startswith("fedkeel: in round 2: ")


def raised_by(call: object) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        usercode.guarded(call, "a:b", "model.name")  # type: ignore[arg-type]
    assert isinstance(caught.value.__cause__, Exception)
    return caught.value.__cause__


def test_what_the_user_called_is_told_where_fedkeel_fails_inside() -> None:
    def calls() -> None:
        usercode.find(3, "model.name")  # type: ignore[arg-type]

    assert (
        usercode.place(raised_by(calls)) == f"test_users_errors.py, line {calls.__code__.co_firstlineno + 1}, in calls"
    )


def test_an_error_of_fedkeel_is_not_blamed_on_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usercode, "FOUND", set())
    try:
        usercode.find(3, "model.name")  # type: ignore[arg-type]
    except Exception as error:
        alone = error.with_traceback(error.__traceback__.tb_next if error.__traceback__ else None)
        assert usercode.unforeseen(alone).startswith("AttributeError: ")
        assert "(an error in fedkeel); add --debug" in usercode.unforeseen(alone)
        monkeypatch.setattr(usercode, "FOUND", {"mine:net", "mine:data"})
        assert "(an error in fedkeel, while it used your mine:data and mine:net)" in usercode.unforeseen(alone)


def diverged(**algorithm: object) -> str:
    settings = {"model": "linear", "rounds": 3, "clients": 5, "executor": "serial", "local": {"lr": 1e30}}
    with pytest.raises(DivergenceError) as caught:
        run(Experiment(dataset={"train_limit": 200, "test_limit": 100}, algorithm=algorithm, **settings))
    return str(caught.value)


def test_divergence_names_the_methods_own_settings() -> None:
    assert diverged(name="fedagg").endswith(
        "; or lower algorithm.cap=10, as the method's learning rates go up to 10 times local.lr"
    )
    assert "; or set algorithm.cap, without which" in diverged(name="fednorm", cap=None)
    told = diverged(name="fedavg")
    assert "try a smaller local.lr, or local.clip_norm" in told
    assert "algorithm" not in told


def test_advice_names_settings_that_the_method_has() -> None:
    advised = {}
    for each in methods().values():
        for rule in each.rules({}):
            if rule.if_diverged:
                advised[each.name] = rule.if_diverged
                assert "algorithm.cap" in rule.if_diverged
                assert "cap" in each.defaults
    assert advised.keys() == {"fedagg", "fedent", "fednorm"}
