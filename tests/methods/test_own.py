"""Methods and rules of a user's own, found by module and name."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedkeel
from fedkeel import Experiment, FedkeelError, InputError, run
from fedkeel.local.executors import choose
from fedkeel.methods import method, methods
from fedkeel.record.runs import RunRecord
from tests.helpers import commands, federation
from tests.helpers.federation import LR, PER_ROUND, ROUNDS, SIZES, Vector
from tests.helpers.folders import SETTLED, faulty, resumed, rows, same, stopped, stopped_again

OWN = """
import torch
from pydantic import Field
from fedkeel import ClientRule, Receipt, Sends, ServerRule, ServerState, method

class Drag(ClientRule):
    pair = "drag"
    mu: float = Field(default=0.3, ge=0)
    def sends(self, layout, received):
        return {"path": Sends(1)}
    def initial(self, w, buffers):
        return {"last": w}
    def step(self, job, w, oracle):
        return oracle.grad(w) + self.mu * (w - job.kept["last"])
    def end(self, job, w, oracle):
        return {"path": (w - job.start).norm(dim=-1, keepdim=True)}, {"last": w.clone()}

class Heavy(ServerRule):
    pair = "drag"
    beta: float = Field(default=0.5, ge=0, lt=1)
    def init(self, w, layout, samples):
        return ServerState(w, {"v": torch.zeros_like(w)})
    def aggregate(self, state, updates):
        shares = updates.shares()
        v = self.beta * state.memory["v"] + shares @ (updates.delta / (1 + updates.messages["path"]))
        return ServerState(state.w + v, {"v": v}), shares

class Lone(Heavy):
    pace = "concurrency"
    def receive(self, state, update, view):
        return self.aggregate(state, update)[0], Receipt(weight=1 / (1 + view.staleness))

drag = method("drag", client=Drag, server=Heavy)
lone = method("lone", client=Drag, server=Lone)
"""
WRONG = """
import torch
from fedkeel import Average, ClientRule, Receipt, ServerRule, method

class Pull(ClientRule):
    strength: float = 0.5
class Mean(Average):
    extra: int = 1
    def aggregate(self, state, updates):
        return super().aggregate(state, updates)
class NoDefault(ClientRule):
    mu: float
class BadDefault(ClientRule):
    mu: int = "much"
class Taken(ClientRule):
    server: int = 1
class Hook(ServerRule):
    def aggregate(self, state, updates): ...
    close: int = 1
class Odd(ServerRule):
    pace = "sometimes"
    def aggregate(self, state, updates): ...
class Unfinished(ServerRule): ...
class Waits(Unfinished):
    pace = "stream"
    def aggregate(self, state, updates): ...
class Raises(ClientRule):
    mu: int = 1
    def model_post_init(self, context): raise SystemExit("no rule today")
class Rate(ClientRule):
    server_lr: float = 7.0
class Mixes(ClientRule):
    def step(self, job, w, oracle): return oracle.grad(w) + w / w.norm()
class MixesLater(ClientRule):
    def step(self, job, w, oracle):
        moved = w - job.start
        return oracle.grad(w) + 5 * moved * moved.norm()
class OneOnly(ClientRule):
    def step(self, job, w, oracle): return oracle.grad(w) / float(job.samples)
class Flat(ClientRule):
    def step(self, job, w, oracle): return oracle.grad(w[0])
class InPlace(ClientRule):
    def begin(self, job, oracle):
        job.start.add_(1)
        return job
class Typo(ClientRule):
    def steps(self, job, w, oracle): return oracle.grad(w)
class Plain(ClientRule):
    def end(self, job, w, oracle): return {"n": job.samples}, {}
    def sends(self, layout, received): return {"n": 1}
class Arrays(ClientRule):
    def step(self, job, w, oracle): return oracle.grad(w).numpy()
class Helped(ClientRule):
    def step(self, job, w, oracle): return self.steps(w, oracle)
    def steps(self, w, oracle): return oracle.grad(w)
class Counts(ClientRule):
    _count: int = 0
class ServerInPlace(Average):
    def aggregate(self, state, updates):
        state.w.add_(1)
        return super().aggregate(state, updates)
class EagerInPlace(ServerRule):
    pace = "concurrency"
    def receive(self, state, update, view):
        state.w.add_(update.delta[0])
        return state, Receipt(weight=1.0)
class Sends(ServerRule):
    def send(self, state, client): return {"v": torch.zeros(3)}
    def aggregate(self, state, updates): return Average().aggregate(state, updates)
class Uses(ClientRule):
    def begin(self, job, oracle):
        job.received["v"].add_(1)
        return job
class Inferring(Average):
    @torch.inference_mode()
    def aggregate(self, state, updates): return super().aggregate(state, updates)
class Bare(Average):
    def report(self, state): return torch.ones(1)
class Shown(Average):
    def report(self, state): return {"norm": state.w.norm()}
class Alike(ClientRule):
    tau2: float = 0.9

pull = method("pull", client=Pull, server=Average)
shows = method("shows", client=Pull, server=Shown)
fedprox = method("fedprox", client=Pull, server=Average)
number = 3
"""
GIVEN: dict[str, Any] = {"data": federation.data(), "model": federation.net(4)}


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_rules.py").write_text(OWN)
    (tmp_path / "wrong_rules.py").write_text(WRONG)
    (tmp_path / "named_badly.py").write_text("from fedkeel import *\nx = method('a/b', ClientRule, Average)\n")
    (tmp_path / "needy.py").write_text("import absent\n")
    (tmp_path / "untyped.py").write_text("import fedkeel\n\nclass Rule(fedkeel.ClientRule):\n    mu = 0.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("own_rules", "wrong_rules", "named_badly"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def by_hand(mu: float, beta: float) -> Vector:
    """All rounds of `drag`, one client after the other."""
    x = federation.start()
    v, last = np.zeros_like(x), dict.fromkeys(range(len(SIZES)), x)
    for round_ in range(1, ROUNDS + 1):
        chosen, moves = federation.chosen(round_), []
        for client in chosen:
            w = x.copy()
            for batch in federation.batches(round_, client):
                w = w - LR * (federation.gradient(w, *batch) + mu * (w - last[client]))
            last[client] = w
            moves.append((w - x) / (1 + np.linalg.norm(w - x)))
        v = beta * v + np.average(moves, axis=0, weights=[SIZES[client] for client in chosen])
        x = x + v
    return x


# Runs: every executor, another pace, resumed.


@pytest.mark.parametrize("executor", federation.EXECUTORS)
def test_rounds_by_hand_on_every_executor(executor: str) -> None:
    result, _ = federation.train({"name": "own_rules:drag", "mu": 0.7, "beta": 0.2}, executor)
    assert len({*federation.chosen(1)} & {*federation.chosen(2)}) not in (0, PER_ROUND)  # some come back, some do not
    np.testing.assert_allclose(federation.weights(result), by_hand(0.7, 0.2), rtol=0, atol=1e-12)
    assert result.summary["algorithm"] == "drag"
    assert result.summary["bytes_up"] == ROUNDS * PER_ROUND * 8 * (federation.start().size + 1)


@pytest.mark.slow
def test_a_pace_of_its_own_on_every_executor() -> None:
    found = {}
    for kind, executor in SETTLED.items():
        described = faulty("own_rules:lone", kind, faults={}, schedule={"concurrency": 3})
        assert described.pace == "concurrency"
        result = run(described.replace(executor=executor), **GIVEN)
        found[kind] = federation.weights(result)
    for kind, weights in found.items():
        np.testing.assert_allclose(weights, found["serial"], rtol=0, atol=1e-12, err_msg=kind)


@pytest.mark.slow
@pytest.mark.parametrize("executor", SETTLED)
@pytest.mark.parametrize("name", ["drag", "lone"])
def test_stopped_and_resumed_bit_for_bit(name: str, executor: str, tmp_path: Path) -> None:
    described = faulty({"name": f"own_rules:{name}", "mu": 0.6}, executor, local={"epochs": 3})
    run(described, tmp_path / "whole", **GIVEN)
    stopped(described, tmp_path / "stopped", 1, **GIVEN)
    stopped_again(tmp_path / "stopped", 3, **GIVEN)
    resumed(tmp_path / "stopped", **GIVEN)
    same(tmp_path / "whole", tmp_path / "stopped")
    assert rows(tmp_path / "whole", "clients")


@pytest.mark.slow
def test_resumed_and_repeated_from_its_folder_by_another_process(tmp_path: Path) -> None:
    settings = [*commands.QUICK, "algorithm=own_rules:drag", "algorithm.mu=0.2", "executor={kind: serial}"]
    described = Experiment.load(overrides=settings)
    run(described, tmp_path / "whole")
    stopped(described, tmp_path / "stopped", 2)
    done = commands.in_a_process("run", "--resume", "stopped", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "stopped" / "learning_curve.png").unlink()
    (tmp_path / "stopped" / "learning_curve.svg").unlink()
    same(tmp_path / "whole", tmp_path / "stopped")
    again = commands.fedkeel("run", "whole/experiment.yaml", "--out", "again", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()
    (tmp_path / "elsewhere").mkdir()
    lost = commands.in_a_process("run", "../whole/experiment.yaml", cwd=tmp_path / "elsewhere")
    assert lost.returncode == 2
    assert "algorithm.name: 'own_rules:drag' cannot be imported" in lost.stderr
    assert "No module named 'own_rules'" in lost.stderr


# Spelling.


def test_every_spelling_is_the_same_experiment(tmp_path: Path) -> None:
    meant = Experiment(algorithm={"name": "own_rules:drag", "mu": 0.2})
    assert meant == Experiment.load(overrides=["algorithm=own_rules:drag", "algorithm.mu=0.2"])
    (tmp_path / "e.yaml").write_text("algorithm: {name: 'own_rules:drag', mu: 0.2}\n")
    assert Experiment.load(tmp_path / "e.yaml") == meant
    (tmp_path / "e.yaml").write_text(meant.to_yaml())
    assert Experiment.load(tmp_path / "e.yaml") == meant
    assert meant.model_dump()["algorithm"] == {
        "name": "own_rules:drag", "client": None, "server": None, "mu": 0.2, "beta": 0.5
    }  # fmt: skip
    client, server = meant.algorithm.rules()
    assert (type(client).__name__, client.model_dump()) == ("Drag", {"mu": 0.2})
    assert (type(server).__name__, server.model_dump()) == ("Heavy", {"beta": 0.5})


@pytest.mark.slow
def test_the_command_line_shows_and_runs_it(tmp_path: Path) -> None:
    shown = commands.fedkeel("show", "--set", "algorithm=own_rules:drag", "algorithm.beta=0.1", cwd=tmp_path)
    assert "name: own_rules:drag\n" in shown.stdout
    assert "  mu: 0.3\n  beta: 0.1\n" in shown.stdout
    done = commands.fedkeel("run", "--set", *commands.QUICK, "algorithm=own_rules:drag", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("drag on fashion-mnist-mini")
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name == "fashion-mnist-mini-linear-drag-seed0"
    assert json.loads((folder / "summary.json").read_text())["algorithm"] == "drag"
    assert RunRecord.read(folder).label == "drag, iid, seed 0"


@pytest.mark.parametrize(
    ("given", "label", "rules"),
    [
        ({"client": "wrong_rules:Pull"}, "Pull+fedavg", ("Pull", "Average")),
        ({"client": "wrong_rules:pull", "server": "fedadam"}, "pull+fedadam", ("Pull", "Adam")),
        ({"client": "fedsam", "server": "wrong_rules:Mean"}, "fedsam+Mean", ("SharpnessAware", "Mean")),
        ({"client": "wrong_rules:Alike", "server": "fedadam"}, "Alike+fedadam", ("Alike", "Adam")),
        ({"client": "wrong_rules:Helped"}, "Helped+fedavg", ("Helped", "Average")),
        ({"client": "fedsam", "server": "wrong_rules:shows"}, "fedsam+shows", ("SharpnessAware", "Shown")),
        ({"algorithm": "own_rules:drag", "server": "own_rules:Lone"}, "drag+Lone", ("Drag", "Lone")),
        ({"client": "own_rules:Drag", "server": "own_rules:Heavy"}, "Drag+Heavy", ("Drag", "Heavy")),
        ({"algorithm": "wrong_rules:pull", "server": "fednova"}, "pull+fednova", ("Pull", "NormalisedAverage")),
    ],
)
def test_halves_combine(given: dict[str, str], label: str, rules: tuple[str, str]) -> None:
    described = Experiment.load(overrides=[f"{key}={value}" for key, value in given.items()])
    assert described == Experiment(**given)
    assert described.algorithm.label == label
    assert tuple(type(rule).__name__ for rule in described.algorithm.rules()) == rules


def test_other_rules_come_with_their_own_defaults(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(Experiment(algorithm="own_rules:drag").to_yaml())
    assert Experiment.load(tmp_path / "e.yaml", ["algorithm.name=fedprox"]).algorithm.rules()[0].model_dump() == {
        "mu": 0.01
    }


def test_a_users_method_does_not_become_one_of_the_package() -> None:
    before = methods()
    made = method("extra", client=fedkeel.ClientRule, server=fedkeel.Average)
    Experiment(algorithm="own_rules:drag")
    assert methods() == before
    assert "extra" not in methods()
    assert made.name == "extra"
    with pytest.raises(InputError, match="'drag' is not known"):
        Experiment(algorithm="drag")


def test_what_an_author_needs_comes_from_fedkeel() -> None:
    for name in fedkeel.__all__:
        assert getattr(fedkeel, name).__class__ is not None
    names = "ClientRule ServerRule ServerState Job Oracle Updates Message Course Receipt View Merge Layout Sends method"
    assert {*names.split()} <= {*fedkeel.__all__}
    with pytest.raises(AttributeError):
        _ = fedkeel.Nothing  # type: ignore[attr-defined]


# Errors.


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("algorithm=nowhere:x", ": run the command where nowhere.py is); give module:name of a method"),
        ("algorithm=nowhere:x", "No module named 'nowhere', looked for from "),
        ("algorithm=nowhere.x.y:z", "No module named 'nowhere', looked for from "),
        (
            "client=untyped:Rule",
            "(untyped.py, line 3, in <module>: mu = 0.1 needs a type if it is a setting, such as mu: float = 0.1; "
            "what a rule says of itself is written as a property); ",
        ),
        ("client=wrong_rules:Typo", "Typo has a method steps, which fedkeel never calls; did you mean step?"),
        (
            "client=wrong_rules:Counts",
            "Counts has the attribute _count, which no checkpoint saves; keep a server's state in ServerState.memory, ",
        ),
        ("algorithm=nowhere:x", ": run the command where nowhere.py is); "),
        ("algorithm=nowhere:x", "module:name of a method"),
        (
            "algorithm=needy:x",
            "(needy.py, line 1, in <module>: ModuleNotFoundError: No module named 'absent'); give module:name",
        ),
        (
            "algorithm=own_rules.py:drag",
            "algorithm.name: the name of a module has no .py; write own_rules:drag instead of 'own_rules.py:drag'",
        ),
        ("client=fedxyz", "scaffold or module:name of your own"),
        ("algorithm=drag", "scaffold or module:name of your own"),
        ("algorithm=own_rules:x", "own_rules.py); "),
        (
            "algorithm=wrong_rules:number",
            "algorithm.name: wrong_rules:number must be a method, made by fedkeel.method; got an object of type int",
        ),
        (
            "algorithm=wrong_rules:Pull",
            "must be a method, made by fedkeel.method; got the class Pull (use algorithm.client for this client rule)",
        ),
        ("algorithm=wrong_rules:fedprox", "is called fedprox, like a method of fedkeel; give it another name"),
        ("algorithm=named_badly:x", "algorithm.name: named_badly:x: method: the name must have 1 to 60 letters, digit"),
        ("algorithm=named_badly:x", "; got 'a/b'"),
        ("client=nowhere:x", "algorithm.client: 'nowhere:x' cannot be imported"),
        (
            "client=wrong_rules:number",
            "algorithm.client: wrong_rules:number must be a subclass of fedkeel.ClientRule; got an object of type int",
        ),
        (
            "client=wrong_rules:Mean",
            "wrong_rules:Mean must be a subclass of fedkeel.ClientRule; got the class Mean",
        ),
        (
            "server=wrong_rules:Pull",
            "wrong_rules:Pull must be a subclass of fedkeel.ServerRule; got the class Pull",
        ),
        (
            "server=wrong_rules:pull",
            "algorithm.server: wrong_rules:pull has no server rule of its own; choose one of asofed",
        ),
        ("client=wrong_rules:NoDefault", "has no default for its setting mu; give every setting a default"),
        ("client=wrong_rules:BadDefault", "wrong_rules:BadDefault.mu"),
        ("client=wrong_rules:BadDefault", "'much'"),
        ("client=wrong_rules:Taken", "has a setting called server, which already has a meaning; give it another name"),
        ("server=wrong_rules:Hook", "has a setting called close, which already has a meaning"),
        (
            "server=wrong_rules:Odd",
            "pace must be one of barrier, stream, periodic, concurrency; got 'sometimes'",
        ),
        ("server=wrong_rules:Unfinished", "has no method aggregate, which its pace barrier needs; define aggregate"),
        ("server=wrong_rules:Waits", "has no method receive, which its pace stream needs; define receive"),
        (
            "client=wrong_rules:Raises",
            "algorithm.client: wrong_rules:Raises cannot be made (wrong_rules.py, line 29, in model_post_init: "
            "SystemExit: no rule today); it must work with the defaults",
        ),
        (
            "client=wrong_rules:Rate",
            "client rule of Rate does not go with the server rule of fedavg, because their settings server_lr differ",
        ),
        ("client=own_rules:Drag", "the client rule of Drag does not go with the server rule of fedavg, because one ne"),
        ("server=own_rules:drag", "the client rule of fedavg does not go with the server rule of drag, because one ne"),
    ],
)
def test_bad_input_is_told(override: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        Experiment.load(overrides=[override])
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("algorithm.mu=-1", r"^algorithm\.mu must be at least 0; got -1$"),
        ("algorithm.beta=1", r"^algorithm\.beta must be less than 1; got 1$"),
        ("algorithm.mu=much", r"^algorithm\.mu must be a number; got 'much'$"),
        ("algorithm.mu=true", r"^algorithm\.mu must be a number; got 'true'$"),
        ("algorithm.nu=1", r"^algorithm\.nu is not a setting of drag; drag has the settings beta, mu$"),
        ("schedule.pace=stream", r"^schedule\.pace must be auto or barrier with drag; got stream$"),
    ],
)
def test_settings_are_checked_like_those_of_the_package(override: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        Experiment.load(overrides=["algorithm=own_rules:drag", override])
    assert re.search(said, str(refused.value)), refused.value


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "{kind: processes, workers: 1, stack: 0, channels_last: false}"])
def test_what_goes_wrong_in_a_rule_is_told_as_the_users(executor: str, tmp_path: Path) -> None:
    (tmp_path / f"fails_in_{executor[:2].strip('{')}.py").write_text(
        "from fedkeel import ClientRule\n\nclass Fails(ClientRule):\n"
        "    def end(self, job, w, oracle):\n        raise ValueError('not like this')\n"
    )
    name = f"fails_in_{executor[:2].strip('{')}"
    settings = [*commands.QUICK, f"client={name}:Fails", f"executor={executor}"]
    done = commands.fedkeel("run", *settings, "--out", "o", cwd=tmp_path)
    assert done.returncode == 1
    assert f"{name}.py, line 5, in end" in done.stderr
    assert "ValueError: not like this" in done.stderr
    assert "defect" not in done.stderr


@pytest.mark.parametrize("batch", [4, 100, "full"])
@pytest.mark.parametrize("rule", ["Mixes", "MixesLater"])
def test_a_formula_that_mixes_clients_is_not_used_in_stacks(rule: str, batch: int | str) -> None:
    """A norm over the whole stack: right for one client, wrong for several at once, perhaps only when they moved."""
    local = {"epochs": 2, "batch_size": batch, "lr": 0.1}
    described = Experiment(client=f"wrong_rules:{rule}", rounds=1, per_round=3, local=local)
    run(described.replace(executor="serial"), **GIVEN)
    with pytest.raises(InputError, match=r"executor.*deviates by up to .* from plain autograd"):
        run(described.replace(executor={"kind": "vectorised", "stack": 3, "channels_last": False}), **GIVEN)


def test_a_rule_that_fails_in_stacks_trains_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_NOTICEABLE", "_LONG"):
        monkeypatch.setattr(choose, name, 0.0)
    described = Experiment(client="wrong_rules:OneOnly", rounds=1, per_round=3)
    summary = run(described, **GIVEN).summary
    assert summary["executor"]["stack"] <= 1
    assert all("it fails" in reason for reason in summary["probe"]["refused"].values())
    assert summary["probe"]["refused"]
    assert "it fails" in summary["why_not_stacked"]
    for kind in ("vectorised", "processes", "auto"):
        with pytest.raises(InputError, match=r"executor: .* cannot be used with this model and method: it fails"):
            run(described.replace(executor={"kind": kind, "stack": 3}), **GIVEN)


@pytest.mark.parametrize("executor", ["serial", "processes"])
@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("Plain", r"the client rule's sends must give a Sends for each name, such as 'n': Sends\(numbers\); got 1"),
        ("Arrays", r"Arrays: step must return a tensor .*; got an array \[1, \d+\] of float64"),
        ("Flat", r"weights must be \[1, \d+\]; got \[\d+\]"),
        ("InPlace", "InPlace: a hook changes tensors in place"),
    ],
)
def test_weights_that_are_not_a_stack_or_are_changed_in_place(rule: str, said: str, executor: str) -> None:
    with pytest.raises(FedkeelError, match=said):
        federation.train({"client": f"wrong_rules:{rule}"}, executor, rounds=1)


def test_tensors_without_a_version_are_fine_and_a_bare_one_is_no_dictionary() -> None:
    plain = federation.weights(federation.train("fedavg", "serial", rounds=2)[0])
    inferred = federation.train({"server": "wrong_rules:Inferring"}, "serial", rounds=2)[0]
    np.testing.assert_array_equal(federation.weights(inferred), plain)
    with pytest.raises(FedkeelError, match=r"Bare: report must return a dictionary of tensors; got a tensor "):
        federation.train({"server": "wrong_rules:Bare"}, "serial", rounds=1)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"server": "wrong_rules:ServerInPlace"}, "ServerInPlace: aggregate changes tensors in place"),
        ({"server": "wrong_rules:EagerInPlace"}, "EagerInPlace: receive changes tensors in place"),
        ({"client": "wrong_rules:Uses", "server": "wrong_rules:Sends"}, "Uses: a hook changes tensors in place"),
    ],
)
def test_what_a_rule_is_given_stays_as_it_is(rules: dict[str, str], said: str) -> None:
    with pytest.raises(FedkeelError, match=said):
        federation.train(rules, "serial", rounds=1)


SCRIPT = """
from fedkeel import Average, ClientRule, Experiment, method, run

print("once")
class Plain(ClientRule):
    def step(self, job, w, oracle):
        return oracle.grad(w)
own = method("own", client=Plain, server=Average)
result = run(Experiment(
    algorithm="script:own", model="linear", rounds=1, clients=4, executor="serial",
    dataset={"train_limit": 100, "test_limit": 50},
))
print(result.summary["algorithm"], type(result.experiment.algorithm.rules()[0]).__module__)
"""


@pytest.mark.parametrize("folder", [".", "below"])
def test_a_script_that_names_itself_runs_once(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, f"{folder}/script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["once", "own", "__main__"]


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        ("aggregate(self, state, updates)", "fedkeel: Nothing: aggregate must return a pair (ServerState, a tensor"),
        ("send(self, state, client)", "fedkeel: Nothing: send must return a dictionary of tensors; got None"),
        ("report(self, state)", "fedkeel: Nothing: report must return a dictionary of tensors; got None"),
        ("work(self, epochs, lr, progress)", "an error in fedkeel, while it used your "),  # which nothing checks
    ],
)
def test_a_rule_that_returns_nonsense_is_named(hook: str, said: str, tmp_path: Path) -> None:
    module = f"returns_nothing_{hook.partition('(')[0]}"
    (tmp_path / f"{module}.py").write_text(
        f"from fedkeel import Average\n\nclass Nothing(Average):\n    def {hook}:\n        return None\n"
    )
    settings = [*commands.QUICK, f"server={module}:Nothing", "executor=serial"]
    done = commands.fedkeel("run", *settings, "--out", "o", cwd=tmp_path)
    assert done.returncode == 1
    assert said in done.stderr
    assert ("used your" in said) == (f"{module}:Nothing" in done.stderr)
