"""The client rule of one method with the server rule of another."""

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkeel import Experiment, InputError
from fedkeel.api import run
from fedkeel.methods import methods
from tests.helpers import federation
from tests.helpers.commands import fedkeel
from tests.helpers.federation import LR, ROUNDS

NAMES = [
    "asofed", "fedadagrad", "fedadam", "fedagg", "fedasmu", "fedasync", "fedavg", "fedbabu", "fedbuff", "fedcm",
    "fedcos", "feddyn", "fedent", "fedgh", "fedlga", "fedlws", "fednorm", "fednova", "fedprox", "fedsa", "fedsam",
    "fedssmu", "fedyogi", "mimelite", "mofedsam", "moon", "port", "scaffold",
]  # fmt: skip
BOUND_NAMES = ("scaffold", "feddyn", "fedcm", "mimelite", "fedgh", "fedagg", "fedent", "fednorm")
BOUND = {name: name for name in BOUND_NAMES} | {"mofedsam": "fedcm"}
"""Methods whose halves need each other's messages; those with the same word understand each other."""
NO_CLIENT_RULE = {
    "fedadagrad", "fedadam", "fedbuff", "fedcos", "fedlga", "fedlws", "fednova", "fedsa", "fedyogi", "port"
}  # fmt: skip
NO_SERVER_RULE = {"fedbabu", "fedprox", "fedsam", "moon"}
"""Methods that do with FedAvg's."""
PAIRS = [(c, s) for c, s in product(NAMES, NAMES) if c not in NO_CLIENT_RULE and s not in NO_SERVER_RULE]
CLASH = {("fedasmu", "fedlga"), ("fedssmu", "fedlga")}
"""Both sides have a `reading`, but not of the same kinds."""
ACCEPTED = [pair for pair in PAIRS if BOUND.get(pair[0]) == BOUND.get(pair[1]) and pair not in CLASH]
SAM_ADAM = ["algorithm.name=fedavg", "client=fedsam", "server=fedadam"]


def composed(client: str, server: str, name: str = "fedavg") -> dict[str, Any]:
    return {"name": name, "client": client, "server": server}


def test_all_spellings_are_the_same_experiment(tmp_path: Path) -> None:
    long = ["algorithm.name=fedavg", "algorithm.client=fedsam", "algorithm.server=fedadam"]
    experiment = Experiment.load(overrides=SAM_ADAM)
    assert experiment == Experiment.load(overrides=long) == Experiment(algorithm=composed("fedsam", "fedadam"))
    assert experiment == Experiment(algorithm="fedavg", client="fedsam", server="fedadam")
    assert experiment != Experiment() != Experiment(client="fedsam")
    client, server = experiment.algorithm.rules()
    assert (type(client), type(server)) == (methods()["fedsam"].client, methods()["fedadam"].server)
    (tmp_path / "e.yaml").write_text(experiment.to_yaml())
    again = Experiment.load(tmp_path / "e.yaml")
    assert again == experiment
    assert (again.algorithm.client, again.algorithm.server) == ("fedsam", "fedadam")
    assert again.algorithm.label == "fedsam+fedadam"


@pytest.mark.parametrize(
    ("half", "before", "after", "label"),
    [("client", "fedprox", "fedsam", "fedsam+fednova"), ("server", "fedlws", "fedadam", "moon+fedadam")],
)
@pytest.mark.parametrize("spelling", ["{}", "algorithm.{}"])
def test_the_command_line_outranks_the_file_in_both_spellings(
    half: str, before: str, after: str, label: str, spelling: str, tmp_path: Path
) -> None:
    other, name = ("server", "fednova") if half == "client" else ("client", "moon")
    for content in (f"{other}: {name}\n{half}: {before}\n", f"algorithm: {{{other}: {name}, {half}: {before}}}\n"):
        (tmp_path / "e.yaml").write_text(content)
        override = f"{spelling.format(half)}={after}"
        assert Experiment.load(tmp_path / "e.yaml", [override]).algorithm.label == label, content


def test_other_rules_come_with_their_own_defaults(tmp_path: Path) -> None:
    """What a file or an experiment says only because it was the default of other rules is not meant."""
    (tmp_path / "e.yaml").write_text(Experiment(algorithm={"name": "fedavg", "weighting": "uniform"}).to_yaml())
    plain = Experiment(algorithm="fedavg")
    changed = [
        Experiment.load(tmp_path / "e.yaml", ["server=fedadam"]),
        Experiment.load(tmp_path / "e.yaml", ["algorithm.name=fedadam"]),
        plain.replace(server="fedadam"),
        Experiment(algorithm=plain.algorithm, server="fedadam"),
    ]
    for experiment in changed:
        assert experiment.algorithm.rules()[1].model_dump() == methods()["fedadam"].server().model_dump()
    with pytest.raises(
        InputError,
        match=r"algorithm\.weighting is not a setting of fedlws; fedlws has the settings beta, divergence, tau_max, t",
    ):  # but this was chosen
        Experiment.load(tmp_path / "e.yaml", ["server=fedlws"])
    chosen = Experiment(algorithm={"name": "fedavg", "server_lr": 0.5}).replace(server="fedadam")
    assert chosen.algorithm.rules()[1].server_lr == 0.5  # type: ignore[attr-defined]


def test_two_spellings_that_differ_are_a_contradiction() -> None:
    with pytest.raises(InputError, match=r"client\b.*'fedsam'.* algorithm\.client\b.*'fedprox'.*; .* one of "):
        Experiment(algorithm={"client": "fedprox"}, client="fedsam")


def test_settings_of_both_rules_are_accepted_and_no_others() -> None:
    experiment = Experiment.load(overrides=[*SAM_ADAM, "algorithm.rho=0.7", "algorithm.beta1=0.4"])
    client, server = experiment.algorithm.rules()
    assert (client.model_dump(), server.beta1, server.server_lr) == ({"rho": 0.7}, 0.4, 0.01)  # type: ignore[attr-defined]
    own = "beta1, beta2, bias_correction, initial_v, rho, server_lr, tau, weighting"
    for setting in ("mu", "option", "temperature"):
        with pytest.raises(InputError) as refusal:
            Experiment.load(overrides=[*SAM_ADAM, f"algorithm.{setting}=0.5"])
        told = f"algorithm.{setting} is not a setting of fedsam+fedadam; fedsam+fedadam has the settings {own}"
        assert str(refusal.value) == told
    with pytest.raises(InputError, match=r"algorithm\.rho must be greater than 0; got -1"):
        Experiment.load(overrides=[*SAM_ADAM, "algorithm.rho=-1"])


def test_what_belongs_together_composes_and_nothing_else_does() -> None:
    assert sorted(methods()) == NAMES
    assert len(ACCEPTED) == 9 * 15 + 7 + 2 * 2 - len(CLASH)
    for half, names in (("client", NO_CLIENT_RULE), ("server", NO_SERVER_RULE)):
        for name in names:
            with pytest.raises(
                InputError, match=f"algorithm.{half}: {name} has no {half} rule of its own; choose one of .*fedavg"
            ):
                Experiment(algorithm={half: name})
    for client, server in PAIRS:
        if (client, server) in ACCEPTED:
            algorithm = Experiment(algorithm=composed(client, server)).algorithm
            expected = methods()[client].client, methods()[server].server
            assert tuple(map(type, algorithm.rules())) == expected
        else:
            with pytest.raises(InputError) as refusal:
                Experiment(algorithm=composed(client, server))
            problem, _, remedy = str(refusal.value).partition("; use algorithm.server ")
            assert {client, server} <= set(re.findall(r"\w+", problem)), (client, server)
            assert remedy
            assert "\n" not in remedy


def test_only_rules_that_go_together_are_offered() -> None:
    """Both FedLGA's server rule and FedASMU's client rule stand alone, but `reading` means other things in them."""
    with pytest.raises(InputError) as refusal:
        Experiment(algorithm=composed("fedent", "fedlga"))
    offered = {*re.findall(r"\w+", str(refusal.value).partition("algorithm.client ")[2])}
    assert {client for client, server in ACCEPTED if server == "fedlga"} - {"fedlga"} <= offered
    assert not {"fedasmu", "fedssmu"} & offered


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddyn"])
def test_halves_of_two_bound_methods_are_refused_whatever_the_name(name: str) -> None:
    for client, server in (("scaffold", "feddyn"), ("feddyn", "scaffold"), ("scaffold", "fedavg")):
        with pytest.raises(InputError, match=rf"{client}.*{server}|{server}.*{client}"):
            Experiment(algorithm=composed(client, server, name))


def test_rules_that_may_be_combined_share_no_setting() -> None:
    """Or one value would have two meanings; but what is the same in both may be (`reading`, FedASMU's `slot`)."""
    for client, server in ACCEPTED:
        ours, theirs = methods()[client].client.model_fields, methods()[server].server.model_fields
        shared = ours.keys() & theirs.keys()
        kinds = [
            {name: (fields[name].annotation, fields[name].default) for name in shared} for fields in (ours, theirs)
        ]
        assert client == server or kinds[0] == kinds[1], (client, server, shared)
        assert not {"name", "client", "server"} & (ours.keys() | theirs.keys())


@pytest.mark.parametrize("name", ["fedavg", "fedsam", "scaffold"])
def test_the_label_says_what_runs(name: str) -> None:
    """A name whose rules are both replaced by one other method's is not what runs."""
    for client, server, label in (
        ("fedsam", "fedavg", "fedsam"),
        ("fedavg", "fedadam", "fedadam"),
        ("mofedsam", "fedcm", "mofedsam"),
        ("fedbabu", "fedavg", "fedbabu+fedavg"),  # FedBABU's own mean is uniform
        ("fedprox", "fednova", "fedprox+fednova"),
    ):
        assert Experiment(algorithm=composed(client, server, name)).algorithm.label == label


def test_the_run_is_called_after_both(tmp_path: Path) -> None:
    size = {"train_limit": 40, "test_limit": 20}
    common: dict[str, Any] = {"dataset": size, "clients": 2, "rounds": 1, "model": "linear", "executor": "serial"}
    result = run(Experiment(**common, client="fedsam", server="fedadam"), below=tmp_path)
    assert result.out is not None
    assert result.out.name == "fashion-mnist-mini-linear-fedsam+fedadam-seed0"
    summary = json.loads((result.out / "summary.json").read_text())
    assert summary["algorithm"] == result.summary["algorithm"] == "fedsam+fedadam"


@pytest.mark.parametrize("executor", ["serial", "stack 3"])
def test_fedprox_clients_with_a_fedadagrad_server_by_hand(executor: str) -> None:
    mu, server_lr, tau = 0.7, 0.3, 0.05
    settings = {"mu": mu, "server_lr": server_lr, "tau": tau}
    result, _ = federation.train({**composed("fedprox", "fedadagrad"), **settings}, executor)
    x = federation.start()
    v = np.full_like(x, tau**2)
    for round_ in range(1, ROUNDS + 1):
        moves = []
        for client in federation.chosen(round_):
            w = x.copy()
            for batch in federation.batches(round_, client):
                w = w - LR * (federation.gradient(w, *batch) + mu * (w - x))
            moves.append(w - x)
        delta = np.mean(moves, axis=0)
        v = v + delta**2
        x = x + server_lr * delta / (np.sqrt(v) + tau)
    np.testing.assert_allclose(federation.weights(result), x, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_all_that_composes_runs() -> None:
    first, local = federation.net(4), {"batch_size": "full"}
    for client, server in ACCEPTED:
        small = {"fedbuff": {"buffer_size": 2}, "port": {"minimum": 2}}.get(server, {})
        algorithm = {**composed(client, server), **small}
        result, _ = federation.train(algorithm, model=first, rounds=1, local=local, finetune={"epochs": 0})
        assert np.isfinite(result.history[-1].loss), (client, server)
        moved = federation.weights(result) - np.concatenate([p.detach().numpy().flatten() for p in first.parameters()])
        assert np.abs(moved).max() > 1e-4, (client, server)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["client=scaffold", "server=feddyn"], ["scaffold", "feddyn", "algorithm.client"]),
        (["algorithm=fedavg", "algorithm.server=mimelite"], ["mimelite", "fedavg", "algorithm.server"]),
        (["client=fedpro"], ["algorithm.client", "fedpro", "did you mean fedprox"]),
        (["algorithm.server=fedadm"], ["algorithm.server", "fedadm", "fedadam"]),
        (["algorithm=fedavgg"], ["algorithm.name", "fedavgg", "did you mean fedavg"]),
        (["client=3"], ["algorithm.client", "3"]),
        (["algorithm=[1]", "client=fedsam"], ["algorithm", "1"]),
        (["client=fedsam", "algorithm.client=fedprox"], ["algorithm.client", "twice"]),
        (["client=fedsam", "server=fedlws", "algorithm.option=I"], ["algorithm.option", "fedsam+fedlws", "rho"]),
        (["client=true"], ["algorithm.client", "true", "fedsam"]),
        (["server=fedsam"], ["algorithm.server", "fedsam has no server rule of its own"]),
        (["finetune.part=head"], ["finetune.part", "head", "finetune.epochs"]),
    ],
)
def test_contradictions_and_unknown_names_on_the_command_line(
    settings: list[str], words: list[str], tmp_path: Path
) -> None:
    for command in ("run", "show"):
        done = fedkeel(command, "--set", *settings, cwd=tmp_path)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert all(word in done.stderr for word in words), done.stderr
    assert not (tmp_path / "runs").exists()


def test_every_method_is_listed_with_a_line_and_a_citation(tmp_path: Path) -> None:
    rows = json.loads(fedkeel("list", "algorithms", "--json", cwd=tmp_path).stdout)
    assert [row["name"] for row in rows] == NAMES
    about = [row["about"] for row in rows]
    assert len(set(about)) == len(NAMES)
    assert all(re.fullmatch(r".{10,} \(.*(19|20)\d\d\)", line) for line in about)
    assert rows[NAMES.index("fedsam")]["settings"]["rho"] == 0.1
    printed = fedkeel("list", "algorithms", cwd=tmp_path).stdout
    parts = re.split(rf"^({'|'.join(NAMES)})\b", printed, flags=re.MULTILINE)
    assert parts[1::2] == NAMES
    assert all(re.search(r"\b(19|20)\d\d\b", part) for part in parts[2::2])
