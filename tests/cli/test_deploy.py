"""`fedkeel deploy` and `fedkeel node`: what they print, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import save_file

pytest.importorskip("cryptography")

from fedkeel.cli import deployed as shown
from fedkeel.record.rows import Evaluation
from tests.helpers import deployed
from tests.helpers.commands import fedkeel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a deployment of two sites in `app`."""
    found = tmp_path_factory.mktemp("deploy")
    done = fedkeel("deploy", "new", "app", "--sites", "north, south", "--set", "rounds=3", cwd=found)
    assert done.returncode == 0, done.stderr
    assert "fedkeel deploy local app" in done.stdout
    return found


def test_a_new_deployment_names_what_to_copy(tmp_path: Path) -> None:
    done = fedkeel("deploy", "new", "my app", "--nodes", "2", "--set", "model=mynet:build", cwd=tmp_path)
    assert "copy your mynet.py into my app" in done.stdout
    assert "\n  fedkeel deploy local 'my app'\n" in done.stdout
    again = fedkeel("deploy", "new", "my app", cwd=tmp_path)
    assert (again.returncode, again.stderr) == (2, "fedkeel: my app is not empty; name a new folder\n")


def test_from_no_keys_to_all(folder: Path) -> None:
    done = fedkeel("deploy", "keys", "app", cwd=folder)
    assert "send this file to every site" in done.stdout
    assert "for other machines it needs a --host" in done.stdout
    assert "0 of 2 sites have a key; missing: north, south" in done.stdout
    for site in ("north", "south"):
        told = fedkeel("node", "enroll", "--site", site, "--out", "mine", cwd=folder).stdout
        assert f"fedkeel deploy keys APP --add {site}.pub" in told
        assert (folder / "mine" / f"{site}.pub").read_text() in told
        assert "PRIVATE" not in told
    added = fedkeel("deploy", "keys", "app", "--add", "mine/north.pub", "--add", "mine/south.pub", cwd=folder)
    assert added.stdout.splitlines() == ["north is added", "south is added", "2 of 2 sites have a key"]
    for name in ("server.crt", "server.key"):
        (folder / "app" / "keys" / name).unlink()
    renewed = fedkeel("deploy", "keys", "app", "--host", "fl.example.org", cwd=folder)
    assert renewed.stdout.splitlines()[0].endswith("server.crt  is new; sites need nothing new, as they know ca.crt")
    for host in ("https://fl.example.org", ""):
        wrong = fedkeel("deploy", "keys", "app", "--host", host, cwd=folder)
        assert (wrong.returncode, "is no name of a machine" in wrong.stderr) == (2, True)
    wrong = fedkeel("deploy", "keys", "app", "--add", "mine/north", cwd=folder)
    assert (wrong.returncode, "is a private key, which must not leave its site" in wrong.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("deploy server none --out r", "is not the folder of a deployment"),
        ("deploy local none", "is not the folder of a deployment"),
        ("deploy local app --nodes 5", "nodes must be from 2 to 2"),
        ("node run app --site north --superlink h:1", "--ca is missing; give the server's ca.crt, or --insecure"),
        ("node run app --site north --superlink h:1 --ca x --insecure", "--insecure cannot be combined with --ca"),
        ("node run app --site west --superlink h:1 --insecure", "'west' is not a site of deploy.yaml"),
    ],
)
def test_what_is_wrong_is_refused(words: str, told: str, folder: Path) -> None:
    pytest.importorskip("flwr")
    before = sorted(folder.rglob("*"))
    done = fedkeel(*words.split(), cwd=folder)
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr
    assert sorted(folder.rglob("*")) == before


def test_a_complete_run_is_told_with_its_result(tmp_path: Path) -> None:
    out = tmp_path / "run"
    value = deployed.deployed(deployed.project(tmp_path / "app", sites=2, rounds=1), out)["accuracy"]
    for words in (("server", "app", "--out", str(out)), ("local", "app", "--out", str(out))):
        done = fedkeel("deploy", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert f"the run in {out} is complete: nothing is left to do" in done.stderr
        assert f"final accuracy  {value:.2%}" in done.stdout
        assert f"run folder  {out}" in done.stdout
        assert (out / "learning_curve.png").stat().st_size > 1000
    (out / "deployment.json").unlink()
    simulated = fedkeel("deploy", "server", "app", "--out", str(out), cwd=tmp_path)
    assert (simulated.returncode, "holds a simulation" in simulated.stderr) == (2, True), simulated.stderr


def test_a_line_of_progress() -> None:
    row = Evaluation(
        round=2, version=2, virtual_seconds=0, wall_seconds=9, metrics={"accuracy": 0.625}, loss=1.25, bytes_up=0,
        bytes_down=0, updates=4,
    )  # fmt: skip
    line = "round 2/5  accuracy 62.50%  loss 1.250  3 of 4 sites trained{}  elapsed 1 min 10 s"
    assert shown.line(row, 5, 4, 3, 70.2) == line.format("")
    assert shown.line(replace(row, tested_by=[0, 2]), 5, 4, 3, 70.2) == line.format(", 2 tested")


def test_a_recorded_run_is_replayed_and_other_weights_are_told(tmp_path: Path) -> None:
    app = deployed.project(tmp_path / "app", sites=2, deploy={"record_uploads": True}, rounds=2)
    deployed.deployed(app, tmp_path / "run")
    done = fedkeel("deploy", "replay", "run", "--app", "app", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert (told["rounds"], told["weights"]) == ("2", "equal, bit for bit")
    assert int(told["events"]) >= 4  # an upload of each site in each round
    model = tmp_path / "run" / "model.safetensors"
    save_file({name: tensor + 1 for name, tensor in deployed.weights(tmp_path / "run").items()}, model)
    other = fedkeel("deploy", "replay", "run", cwd=tmp_path)
    assert (other.returncode, "weights     not those of the run" in other.stdout) == (1, True), other.stderr
    (tmp_path / "run" / "events.msgs").unlink()
    without = fedkeel("deploy", "replay", "run", cwd=tmp_path)
    assert (without.returncode, "set record_uploads: true in deploy.yaml" in without.stderr) == (2, True)
