"""`fedkeel fleet from` and `fedkeel fleet replay`."""

import json
import sys
from pathlib import Path

import pytest
from matplotlib.image import imread

from fedkeel.record.runs import RunRecord
from tests.helpers.commands import QUICK, fedkeel
from tests.helpers.report_folders import record

KNOWN = "seconds_per_sample,uplink_mbps,downlink_mbps\n" + "".join(f"0.0{1 + n},{1 + n},{20 + n}\n" for n in range(8))


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `real` in it, in which every client takes part."""
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "known.csv").write_text(KNOWN)
    words = [*QUICK, "clients=8", "per_round=8", "executor=serial", "fleet.profile=known.csv", "--out", "real", "-q"]
    done = fedkeel("run", *[each for each in words if each not in ("clients=10", "per_round=5")], cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_trace_comes_out_of_a_run(real: Path) -> None:
    done = fedkeel("fleet", "from", "real", "--out", "made/devices.csv", cwd=real, env={"COLUMNS": "100"})
    assert done.returncode == 0, done.stderr
    assert (real / "made/devices.csv").read_text() == KNOWN
    lines = done.stdout.splitlines()
    assert lines[0] == "8 devices, from 24 jobs that arrived and 0 that were lost"
    assert lines[2].split() == ["milliseconds", "per", "sample", "10", "45", "45", "80"]
    assert [line.split(",")[0].split()[0] for line in lines[3:]] == ["uplink", "downlink", "jobs", "trace"]
    assert "cannot be told apart" in done.stderr
    fedkeel("fleet", "from", "real", cwd=real)
    assert (real / "real/devices.csv").read_text() == KNOWN


def test_a_run_is_simulated_and_compared(real: Path) -> None:
    done = fedkeel("fleet", "replay", "real", "--out", "simulated", cwd=real, env={"COLUMNS": "100"})
    assert done.returncode == 0, done.stderr
    lines = {" ".join(line.split()[:-3]): line.split()[-3:] for line in done.stdout.splitlines()}
    assert done.stdout.count(" +0.00 points") >= 4
    assert lines["rounds"] == ["3", "3", "+0"]
    assert lines["jobs lost"] == ["0", "0", "+0"]
    assert "time to the end" in done.stdout
    assert "+0.0%" in done.stdout
    assert "the jobs of 8 clients are predicted with an error of 0.0% (median) and 0.0% (worst)" in done.stdout
    assert "fedkeel report real simulated --open" in done.stdout
    told = json.loads((real / "simulated/prediction.json").read_text())
    assert [each["client"] for each in told["clients"]] == [*range(8)]
    assert imread(real / "simulated/prediction.png").shape[1] > 1000
    both = [RunRecord.read(real / name).column("accuracy") for name in ("real", "simulated")]
    assert both[0] == both[1]
    page = fedkeel("report", "real", "simulated", "--out", "both.html", cwd=real)
    assert page.returncode == 0, page.stderr
    assert '"predictions":[{"scene":0,"variant":1,' in (real / "both.html").read_text()


def test_settings_may_change(real: Path) -> None:
    done = fedkeel("fleet", "replay", "real", "--set", "rounds=2", "seed=4", "--out", "other", "-q", cwd=real)
    assert (done.returncode, done.stdout) == (0, "")
    stored = RunRecord.read(real / "other").experiment
    assert (stored["rounds"], stored["seed"], stored["fleet"]["profile"]) == (2, 4, "real/devices.csv")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["from", "nowhere"], "run folder nowhere does not exist; name a folder that fedkeel run has made"),
        (["from", "."], "run folder . holds no run; name a folder that fedkeel run has made"),
        (["from", "empty"], "run folder empty: no upload has arrived"),
        (["from", "real", "--out", "devices.txt"], "out must be a file name that ends in .csv; got devices.txt"),
        (["from", "real", "--out", "known.csv/devices.csv"], "out: known.csv/devices.csv cannot be written"),
        (["replay", "nowhere"], "run folder nowhere does not exist"),
        (["replay", "real", "--out", "real"], "out: real is not empty; name a new or empty folder"),
        (["replay", "real", "other.yaml"], "a setting must be key=value, such as dataset=mnist; got other.yaml"),
        (["replay", "real", "--set", "roundz=2"], "roundz is not a setting"),
    ],
)
def test_mistakes_are_told(real: Path, words: list[str], said: str) -> None:
    if "empty" in words:
        record(real / "empty", [])
    done = fedkeel("fleet", *words, cwd=real)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_own_code_of_a_deployment_is_found_with_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    own = tmp_path / "app"
    own.mkdir()
    (own / "mymodel.py").write_text(
        "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n"
    )
    words = [each for each in QUICK if not each.startswith(("model", "clients", "per_round"))]
    made = fedkeel(
        "run", *words, "model=mymodel:build", "clients=2", "per_round=2", "--out", str(tmp_path / "run"), "-q", cwd=own
    )
    assert made.returncode == 0, made.stderr
    (tmp_path / "run/deployment.json").write_text('{"sites": ["north", "south"], "data": {"own": false}}')
    sys.modules.pop("mymodel", None)
    done = fedkeel("fleet", "replay", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert "or name the folder of the deployment with --app" in " ".join(done.stderr.split())
    done = fedkeel("fleet", "replay", "run", "--app", "app", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
