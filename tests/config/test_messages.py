"""What is said about settings that are wrong: whole sentences, as a user sees them."""

from pathlib import Path

import pytest

from fedkeel import Experiment, InputError
from fedkeel.errors import UnknownSettingError, no_such_setting


def said(*overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        Experiment.load(overrides=overrides)
    assert "accepted" not in str(caught.value)
    assert "pydantic" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("clients=0", "clients must be greater than 0; got 0"),
        ("participation=1.2", "participation must be at most 1; got 1.2"),
        ("local.steps=0", "local.steps must be greater than 0; got 0"),
        ("local.lr=-1", "local.lr must be greater than 0; got -1"),
        ("local.lr=.nan", "local.lr must be a finite number; got nan"),
        ("local.lr=1e308", "local.lr must be at most 1e+38; got 1e+308"),
        ("local.lr=fast", "local.lr must be a number; got 'fast'"),
        ("local.batch_size=0", "local.batch_size must be greater than 0 or 'full'; got 0"),
        ("local.momentum=1", "local.momentum must be less than 1; got 1"),
        ("local.optimizer=rmsprop", "local.optimizer must be 'sgd', 'adam' or 'adamw'; got 'rmsprop'"),
        ("local.betas=[0.5]", "local.betas.1 is missing; give it a value"),
        ("local.betas=[0.5, 0.5, 0.5]", "local.betas must be a list of at most 2; got [0.5, 0.5, 0.5]"),
        ("local=5", "local must be a section of settings, such as local.epochs; got 5"),
        ("dataset=5", "dataset must be a name or a section of settings; got 5"),
        ("partition=[1]", "partition must be a name or a section of settings; got [1]"),
        ("faults.corruptions=[]", "faults.corruptions must be a list of at least 1; got []"),
        ("evaluate_local=3", "evaluate_local must be true or false; got 3"),
        ("name=3", "name must be a string; got 3"),
        ("rounds=many", "rounds must be an integer; got 'many'"),
        ("rounds=2.5", "rounds must be an integer; got 2.5"),
        ("rounds=true", "rounds must be an integer; got 'true'"),
        ("seed=-1", "seed must be at least 0; got -1"),
        ("threads=100000", "threads must be at most 256; got 100000"),
        ("dataset=fashion-mnits", "dataset.name: 'fashion-mnits' is not known; did you mean fashion-mnist or fashion-"),
        ("algorithm=fedavgg", "algorithm.name: 'fedavgg' is not known; did you mean fedavg"),
        ("partition.kind=dirchlet", "partition.kind: 'dirchlet' is not known; did you mean dirichlet?"),
        ("algorithm=zzz", "algorithm.name: 'zzz' is not known; choose one of asofed, fed"),
        ("algorithm.server_lr=0", "algorithm.server_lr must be greater than 0; got 0"),
        ("wire=[{kind: clip, norm: 5, foo: 1}]", "wire.0.foo is not a setting of clip; clip has the settings kind, n"),
        ("wire=[cast, clip]", "wire.1.norm is missing; give it a number greater than 0"),
        ("wire=[cast, {kind: clip, norm: 0}]", "wire.1.norm must be greater than 0; got 0"),
        ("wire=[3]", "wire.0 must be a name or a section of settings; got 3"),
        ("wire=clap", "wire.0.kind: 'clap' is not known; did you mean clip?"),
        ("wire=3", "wire must be a list such as [a, b]; got 3"),
        ("wire.0.norm=5", "wire.0.norm: there is no wire.0; wire is empty, so set wire itself"),
        ("rounds", "a setting must be key=value, such as local.lr=0.05; got 'rounds'"),
        ("rounds={", "rounds must be a YAML value; got '{' (line 1, column 2: "),
        ("rounds=!!bool foo", "rounds must be a YAML value; got '!!bool foo' (line 1, column 1: 'foo' is not"),
        ("seed=2001-99-99", "seed must be a YAML value; got '2001-99-99'"),
        ("rounds=" + "{a: " * 900, "rounds must be a YAML value; got '{a: {a:"),
        ("name=../up", "name must be 1 to 100 printable bytes that name a folder, without / and \\ and not start"),
        ("stop_at_target=true", "stop_at_target needs a target; set target, or target_accuracy"),
    ],
)  # fmt: skip
def test_one_setting(override: str, sentence: str) -> None:
    assert said(override).startswith(sentence)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["rounds=1", "rounds=2"], "rounds is given twice; keep one of the two"),
        (
            ["participation=0.5", "per_round=3"],
            "per_round=3 and participation=0.5 both say how many clients take part in a round; keep one of them",
        ),
        (["clients=5", "per_round=6"], "per_round must be at most clients=5; got 6"),
        (
            ["local.steps=4", "fleet.tau_max=4"],
            "fleet.tau_max must be at most 3 with local.steps=4, as every device does at least one mini-batch; got 4",
        ),
        (
            ["local.steps=1", "fleet.rho=0.5"],
            "fleet.rho=0.5 needs jobs of at least 2 steps, so that a device can miss one; set local.steps to 2 or more",
        ),
        (
            ["algorithm=fedagg", "local.optimizer=adam"],
            "local.optimizer: adam cannot be used with fedagg, as its learning rates",
        ),
        (["schedule.pace=stream"], "schedule.pace must be auto or barrier with fedavg; got stream"),
        (["finetune.lr=0.1"], "finetune.lr=0.1 needs fine-tuning; set finetune.epochs, or remove it"),
        (["sampling=scheme1", "algorithm=fedasync"], "sampling must be uniform with fedasync, which receives updates"),
        (["faults.corrupt=0.1", "faults.corruptions=[huge]"], "faults.corruptions: 'huge' needs gate.max_norm"),
        (["local=3", "local.lr=5"], "local.lr: local is 3, which has no settings below it; make local a section"),
        (["wire=clip", "wire.1.norm=5"], "wire.1.norm: there is no wire.1; use wire.0"),
        (["wire=[cast, clip]", "wire.7=cast"], "wire.7: there is no wire.7; use wire.0 to wire.1"),
        (
            ["wire=[clip]", "wire.norm=5"],
            "wire.norm: wire is ['clip'], which has no settings below it; name a place in",
        ),
        (["client=fedsam", "algorithm.client=moon"], "algorithm.client is given twice; keep one of the two"),
    ],
)
def test_settings_that_do_not_go_together(overrides: list[str], sentence: str) -> None:
    assert said(*overrides).startswith(sentence)


@pytest.mark.parametrize(
    ("overrides", "advice"),
    [
        (["lr=0.1"], "lr is not a setting; did you mean local.lr or finetune.lr?"),
        (["learning_rate=0.1"], "learning_rate is not a setting; did you mean local.lr?"),
        (["local.learning_rate=0.1"], "local.learning_rate is not a setting; did you mean local.lr?"),
        (["num_rounds=3"], "num_rounds is not a setting; did you mean rounds?"),
        (["local.rounds=3"], "local.rounds is not a setting; did you mean rounds or checkpoint.rounds?"),
        (["speed_ratio=3"], "speed_ratio is not a setting; did you mean fleet.speed_ratio?"),
        (["sped_ratio=3"], "sped_ratio is not a setting; did you mean fleet.speed_ratio"),
        (["fleet.speed=3"], "fleet.speed is not a setting; did you mean fleet.speed_ratio?"),
        (["deadline=3"], "deadline is not a setting; did you mean schedule.deadline_seconds?"),
        (["clinets=3"], "clinets is not a setting; did you mean clients?"),
        (["algorithm=fedagg", "phi1=sum"], "phi1 is not a setting; did you mean algorithm.phi1?"),
        (["phi1=sum"], "phi1 is not a setting; did you mean algorithm.phi1 of fedagg?"),
        (["client=fedprox", "mu=1"], "mu is not a setting; did you mean algorithm.mu?"),
        (["partition=dirichlet", "alpha=1"], "alpha is not a setting; did you mean partition.alpha?"),
        (
            ["alpha=1"],
            "alpha is not a setting; did you mean partition.alpha of dirichlet or algorithm.alpha of fedagg, ",
        ),
        (["partition.alpha=1"], "partition.alpha is not a setting of iid; choose partition.kind dirichlet to use it"),
        (
            ["partition=dirichlet", "partition.alhpa=1"],
            "partition.alhpa is not a setting of dirichlet; did you mean par",
        ),
        (
            ["algorithm.mu=1"],
            "algorithm.mu is not a setting of fedavg; choose algorithm.name fedasync, fedprox or moon",
        ),
        (
            ["algorithm.rounds=1"],
            "algorithm.rounds is not a setting of fedavg; did you mean rounds or checkpoint.rounds",
        ),
        (
            ["model.norm=group"],
            "model.norm is not a setting of mlp-400; choose model.name vgg11, resnet18, resnet20 or ",
        ),
        (["model=vgg11", "norm=group"], "norm is not a setting; did you mean model.norm?"),
        (["local.paint=1"], "local.paint is not a setting; local has the settings batch_size, betas, "),
        (["self=1"], "self is not a setting; the settings are algorithm, "),
    ],
)
def test_a_setting_in_the_wrong_place(overrides: list[str], advice: str) -> None:
    assert said(*overrides).startswith(advice)


def test_files_and_python_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text("local: {rounds: 3}\nlr: 0.1\n")
    told = "lr is not a setting; did you mean local.lr or finetune.lr?"
    with pytest.raises(InputError, match=r"local\.rounds is not a setting; did you mean rounds") as from_file:
        Experiment.load(path)
    assert told in str(from_file.value).splitlines()
    with pytest.raises(InputError) as from_python:
        Experiment(lr=0.1, local={"rounds": 3})
    assert sorted(str(from_python.value).splitlines()) == sorted(str(from_file.value).splitlines())


def test_several_problems_have_a_line_each() -> None:
    assert (
        said("clients=0", "rounds=0") == "clients must be greater than 0; got 0\nrounds must be greater than 0; got 0"
    )
    many = [f"key{number}=1" for number in range(9)]
    assert said(*many).splitlines()[5:] == ["and more"]


def test_the_error_knows_what_was_looked_for() -> None:
    error = no_such_setting("algorithm", "mu", "fedavg", ["weighting", "server_lr"])
    assert isinstance(error, UnknownSettingError)
    assert (error.section, error.key, error.owner, error.names) == (
        "algorithm",
        "mu",
        "fedavg",
        ("server_lr", "weighting"),
    )
    assert str(error) == "algorithm.mu is not a setting of fedavg; fedavg has the settings server_lr, weighting"
    assert str(no_such_setting("model", "x", "mine", [])) == "model.x is not a setting of mine; mine has no settings"
