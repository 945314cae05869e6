"""Sites that cannot take part: what differs is named, at the server and at the site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fedkeel.deploy import alike
from fedkeel.deploy.prepared import Project
from fedkeel.deploy.silo import Silo
from fedkeel.deploy.site import Site
from fedkeel.errors import FedkeelError, InputError
from fedkeel.runner.stopping import Stop
from fedkeel.world.remote.loopback import Loopback
from fedkeel.world.remote.message import Message
from tests.helpers.deployed import SETTINGS, deployed, own_modules, project


def tried(folder: Path, there: dict[str, Any], started: int | None = 2, **how: Any) -> tuple[list[str], list[str], str]:
    """(What the server tells, what the second site tells, how it ended) if the second site has other settings.

    A server that would wait for long is stopped when the site was told something.
    """
    app = project(folder / "app", 2, how.pop("deploy", None), rounds=1)
    other = project(folder / "other", 2, how.pop("other", None), **{"rounds": 1, **there})
    server, site, stop = list[str](), list[str](), Stop()

    def told(line: str) -> None:
        site.append(line)
        stop.asked = started is None

    with own_modules(app), own_modules(other):
        made = []
        for number, where in enumerate((app, other)):
            loaded = Project.load(where)
            here = Site.of(loaded, f"site-{number}", None)
            made.append(Silo(loaded, here, folder / "state" / str(number), told if number else lambda _: None))
        try:
            link = Loopback({1: made[0].answer, 2: made[1].answer})
            deployed(app, folder / "run", link, tell=server.append, started=started, stop=stop)
        except FedkeelError as error:
            return server, site, str(error)
    return server, site, ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("there", "differs"),
    [
        ({"local": {**SETTINGS["local"], "lr": 0.1}}, "local.lr is 0.1 at the site and 0.05 at the server"),
        ({"algorithm": "scaffold"}, "algorithm.name is scaffold at the site and fedavg at the server"),
        ({"model": "mlp-400"}, "the number of weights is 318,010 at the site and 7,850 at the server"),
        ({"seed": 9}, "seed is 9 at the site and 0 at the server"),
    ],
    ids=["lr", "method", "model", "seed"],
)
def test_what_differs_is_named_on_both_sides(there: dict[str, Any], differs: str, tmp_path: Path) -> None:
    server, site, ends = tried(tmp_path, there)
    sentence = f"{differs}; copy the project's folder to the site again"
    assert f"site-1 cannot take part: {sentence}" in server
    assert ends == f"too many sites cannot take part (site-1: {sentence})"
    assert site in ([], [f"the server refuses site-1: {sentence}"])  # the server may end before it is heard
    assert not any("back" in line for line in server)


@pytest.mark.slow
def test_a_server_that_waits_tells_the_site_and_what_to_do(tmp_path: Path) -> None:
    server, site, ends = tried(tmp_path, {"seed": 9}, None)
    assert ends.startswith("stopped")
    assert len([line for line in server if "cannot take part" in line]) == 1
    assert server[-1].startswith("mend the site, and start its node again there")
    assert len(site) == 1
    assert site[0].startswith("the server refuses site-1: seed is 9")


@pytest.mark.slow
def test_an_other_place_in_deploy_yaml_is_refused(tmp_path: Path) -> None:
    _, _, ends = tried(tmp_path, {}, other={"sites": ["site-1", "site-0"]})
    assert "site-1: deploy.yaml has it in place 0 at the site and 1 at the server" in ends


@pytest.mark.slow
def test_a_site_that_takes_part_says_so_once(tmp_path: Path) -> None:
    _, site, _ = tried(tmp_path, {})
    assert site == ["site-1 takes part"]


@pytest.mark.slow
def test_sites_hear_that_the_run_is_complete(tmp_path: Path) -> None:
    app, told = project(tmp_path / "app", 1, rounds=1), list[str]()
    with own_modules(app):
        loaded = Project.load(app)
        silo = Silo(loaded, Site.of(loaded, "site-0", None), tmp_path / "state", told.append)
        deployed(app, tmp_path / "run", Loopback({1: silo.answer}))
    assert told == ["site-0 takes part", "the run is complete; site-0 waits for the next one"]


@pytest.mark.slow
def test_what_is_wrong_at_a_site_is_told_there_once(tmp_path: Path) -> None:
    app, told = project(tmp_path / "app", 1), list[str]()
    (app / "data.py").write_text("def load(site):\n    return 1\n")
    with own_modules(app):
        loaded = Project.load(app)
        silo = Silo(loaded, Site.of(loaded, "site-0", None), tmp_path / "state", told.append)
        hello = Message("hello", {"run": "f" * 32, "session": 1}).pack()
        answers = [Message.unpack(silo.answer(hello)) for _ in range(3)]
    assert {answer.facts["wrong"] for answer in answers} == {True}
    assert len(told) == 1
    assert told[0].startswith("site-0 cannot do what the server asks for: data.py: load must return")


@pytest.mark.slow
def test_a_server_that_knows_all_its_sites_does_not_wait_for_bad_data(tmp_path: Path) -> None:
    app = project(tmp_path / "app", 2)
    (app / "data.py").write_text("def load(site):\n    return 1\n")
    with pytest.raises(InputError, match=r"too many sites cannot take part \(node [12].*: its data or its model"):
        deployed(app, tmp_path / "run", started=2)


@pytest.mark.parametrize("told", [None, 1, [], {}, {"seed": None}, {"seed": "x" * 9999}, {"\n": "1"}, {"a" * 9999: ""}])
def test_whatever_a_site_tells_there_is_a_short_sentence(told: Any) -> None:
    for server in ({"seed": "0"}, {}):
        sentence = alike.difference(server, told)
        assert sentence.isprintable()
        assert len(sentence) < 500


def test_what_is_told_is_short(tmp_path: Path) -> None:
    app = project(tmp_path / "app", 2, algorithm="fedasmu", wire=[{"kind": "cast"}])
    with own_modules(app):
        experiment = Project.load(app).experiment
    assert yaml.safe_load((app / "experiment.yaml").read_text())["algorithm"] == "fedasmu"
    layout = type("Layout", (), {"size": 10**9, "buffers": (), "parameters": tuple(
        type("Slice", (), {"name": f"{number}." + "x" * 999, "shape": (3, 4)}) for number in range(2000)
    )})  # fmt: skip
    found = alike.told(experiment, layout)  # type: ignore[arg-type]
    assert found["wire.0.kind"] == "cast"
    assert found["the number of weights"] == "1,000,000,000"
    assert len(found) == alike.MOST
    assert all(len(text) <= alike.LONGEST + 20 for each in found.items() for text in each)


# What is missing at a site.


def loaded(app: Path, source: str, data: Path | None = None, wrong: bool = True) -> str:
    """What the site tells its own people when its hello fails, with this `data.py`; the server must not hear it."""
    (app / "data.py").write_text(source)
    told: list[str] = []
    with own_modules(app):
        found = Project.load(app)
        silo = Silo(found, Site.of(found, "site-0", data), app / "state", told.append)
        body = silo.answer(Message("hello", {"run": "f" * 32, "session": 1}).pack())
    (sentence,), answer = told, Message.unpack(body)
    assert answer.facts["wrong"] is wrong
    assert answer.facts["why"].startswith("its data or its model cannot be used")
    assert answer.facts["why"].endswith("; its own terminal says why")
    assert not any(secret.encode() in body for secret in ("Ada", "patients", str(app)))
    return sentence.removeprefix("site-0 cannot do what the server asks for: ")


NAMES = "Ada Lovelace", "Alan Turing", "Emmy Noether"
READ = "def load(site):\n    return site.read(site.data)\n"


def test_cells_and_paths_stay_at_the_site(tmp_path: Path) -> None:
    file = tmp_path / "patients.csv"
    file.write_text("age,name\n" + "".join(f"{30 + number},{NAMES[number % 3]}\n" for number in range(30)))
    both: list[dict[str, Any]] = [{"target_type": "number"}, {"classes": ["a", "b"]}]
    for number, described in enumerate(both):
        app = project(tmp_path / f"app-{number}", 1, dataset={"name": "a.csv", "target": "name", **described})
        found = loaded(app, READ, file)
        assert "Ada Lovelace" in found
        assert "name" in found


@pytest.mark.parametrize("error", ["ValueError", "SystemExit"])
def test_words_of_data_py_stay_at_the_site(error: str, tmp_path: Path) -> None:
    source = f"def load(site):\n    raise {error}('Ada Lovelace in /data/patients.csv')\n"
    (tmp_path / "file").touch()
    found = loaded(project(tmp_path / "app", 1), source, tmp_path / "file", wrong=False)
    assert found == f"{error}: Ada Lovelace in /data/patients.csv"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return site.read(site.data)", "data.py of site-0 reads a path, and none was given; give --data PATH"),
        ("return open(site.data)", "data.py: load failed without --data ("),
    ],
)
def test_a_site_without_a_path_is_told_to_give_one(body: str, told: str, tmp_path: Path) -> None:
    found = loaded(project(tmp_path / "app", 2), f"def load(site):\n    {body}\n")
    assert found.startswith(told)
    assert "give --data PATH" in found


def test_a_share_of_a_file_that_is_not_there_needs_a_path(tmp_path: Path) -> None:
    app = project(tmp_path / "app", 2, dataset={"name": str(tmp_path / "none.csv"), "target": "y"})
    assert loaded(app, "def load(site):\n    return site.share()\n").endswith("; or give --data PATH")


@pytest.mark.parametrize("file", ["data.py", "model.py"])
def test_a_folder_without_its_modules_is_refused(file: str, tmp_path: Path) -> None:
    app = project(tmp_path / "app", 2, model="model:build")
    (app / "model.py").write_text("def build():\n    pass\n")
    (app / file).unlink()
    with own_modules(app), pytest.raises(InputError, match=f"app has no {file}; "):
        Project.load(app)


@pytest.mark.parametrize("text", ["wait_forr: 1", "wait_for: [", "- a"])
def test_errors_of_deploy_yaml_name_that_file(text: str, tmp_path: Path) -> None:
    app = project(tmp_path / "app", 2)
    (app / "deploy.yaml").write_text(text)
    with pytest.raises(InputError, match=r"deploy\.yaml") as found:
        Project.load(app)
    assert "experiment" not in str(found.value)
