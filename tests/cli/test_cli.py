"""The command line as a user meets it: what it prints, what it writes, how it ends."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from fedkeel import InputError
from tests.helpers.commands import QUICK, fedkeel, in_a_process, interrupted


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("cli")
    done = fedkeel("run", "--set", *QUICK, "target_accuracy=0.3", "--out", "here", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "here", done.stdout


def test_run_prints_accuracy_and_paths(finished: tuple[Path, str]) -> None:
    _, printed = finished
    assert "final accuracy" in printed
    assert "run folder  here" in printed
    assert "learning_curve.png" in printed
    assert "round 3/3" in printed
    assert re.search(r"time +elapsed .* s, virtual \d+ ", printed)
    assert "next        fedkeel report here --open" in printed


def test_quiet_prints_nothing(tmp_path: Path) -> None:
    done = fedkeel("run", "-q", "--set", *QUICK, "--out", "here", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "here" / "summary.json").exists()


def test_run_folder_is_complete(finished: tuple[Path, str]) -> None:
    out, _ = finished
    assert sorted(p.name for p in out.iterdir()) == [
        "best_model.safetensors", "checkpoint", "clients.jsonl", "experiment.yaml", "history.jsonl", "labels.json",
        "learning_curve.png", "learning_curve.svg", "model.safetensors", "refused.jsonl", "rounds.jsonl", "run.json",
        "summary.json", "unfinished.jsonl",
    ]  # fmt: skip
    summary = json.loads((out / "summary.json").read_text())
    asked = (
        "algorithm dataset model seed rounds final_accuracy best_accuracy final_loss target_accuracy rounds_to_target "
        "virtual_seconds virtual_seconds_to_target bytes_up bytes_down wall_seconds samples_per_second"
    )
    assert set(asked.split()) <= set(summary)
    assert (summary["algorithm"], summary["dataset"], summary["model"]) == ("fedavg", "fashion-mnist-mini", "linear")
    rows = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert set(rows[0]) == {
        "round",
        "version",
        "virtual_seconds",
        "wall_seconds",
        "accuracy",
        "loss",
        "train_loss",
        "bytes_up",
        "bytes_down",
        "updates",
    }
    assert rows[-1]["accuracy"] == summary["final_accuracy"]
    assert len((out / "clients.jsonl").read_text().splitlines()) == 15
    assert yaml.safe_load((out / "experiment.yaml").read_text())["dataset"]["train_limit"] == 500
    weights = load_file(out / "model.safetensors")
    assert weights["head.weight"].shape == (10, 784)


def _without_times(path: Path) -> list[dict[str, object]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "wall_seconds"} for row in rows]


@pytest.mark.slow
def test_the_written_experiment_repeats_the_run(finished: tuple[Path, str], tmp_path: Path) -> None:
    out, _ = finished
    again = in_a_process("run", str(out / "experiment.yaml"), "--out", "again", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    for name in ("history.jsonl", "clients.jsonl"):
        assert _without_times(tmp_path / "again" / name) == _without_times(out / name)
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_run_chooses_a_new_folder_each_time(tmp_path: Path) -> None:
    for _ in range(2):
        assert fedkeel("run", "--set", *QUICK, "rounds=1", cwd=tmp_path).returncode == 2  # rounds is set twice
    quick = [s for s in QUICK if not s.startswith("rounds")]
    for _ in range(2):
        assert fedkeel("run", *quick, "rounds=1", cwd=tmp_path).returncode == 0
    names = sorted(p.name for p in (tmp_path / "runs").iterdir())
    assert names == ["fashion-mnist-mini-linear-fedavg-seed0", "fashion-mnist-mini-linear-fedavg-seed0-2"]


@pytest.mark.slow
def test_run_says_what_was_lost(tmp_path: Path) -> None:
    said = fedkeel("run", "model=linear", "rounds=3", "fleet.dropout=0.4", "executor=serial", cwd=tmp_path).stdout
    (lost,) = re.findall(r"not used +(\d+) jobs lost or not needed, 0 uploads refused by the gate", said)
    (folder,) = (tmp_path / "runs").iterdir()
    assert int(lost) == len((folder / "unfinished.jsonl").read_text().splitlines()) > 0


def test_version(tmp_path: Path) -> None:
    assert fedkeel("--version", cwd=tmp_path).stdout.startswith("fedkeel 0.")


def test_show_prints_what_run_would_do(tmp_path: Path) -> None:
    shown = fedkeel("show", "--set", "clients=7", "partition=pathological", cwd=tmp_path)
    assert shown.returncode == 0
    values = yaml.safe_load(shown.stdout)
    assert (values["clients"], values["per_round"], values["partition"]["kind"]) == (7, 7, "shards")
    (tmp_path / "e.yaml").write_text(shown.stdout)
    assert fedkeel("show", "e.yaml", cwd=tmp_path).stdout == shown.stdout


@pytest.mark.parametrize(
    ("what", "name"),
    [("algorithms", "fedavg"), ("models", "lenet5"), ("datasets", "fashion-mnist"), ("partitions", "dirichlet")],
)
def test_list(what: str, name: str, tmp_path: Path) -> None:
    rows = json.loads(fedkeel("list", what, "--json", cwd=tmp_path).stdout)
    row = next(row for row in rows if row["name"] == name)
    assert row["about"]
    assert name in fedkeel("list", what, cwd=tmp_path).stdout


@pytest.mark.slow
def test_data_show_draws_and_counts(tmp_path: Path) -> None:
    done = fedkeel(
        "data",
        "show",
        "fashion-mnist-mini",
        "--partition",
        "classes",
        "--set",
        "clients=10",
        "--out",
        "heat.png",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "heat.png").read_bytes().startswith(b"\x89PNG")
    assert "10 clients, 6,000 samples, 10 classes" in done.stdout
    assert "ground metric 0 or 1" in done.stdout
    assert ": 0.8000" in done.stdout  # two of ten equal classes each


@pytest.mark.slow
def test_data_show_takes_the_files_partition_and_the_right_title(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text("partition: {kind: dirichlet, alpha: 0.1}\nclients: 10\n")
    done = fedkeel("data", "show", "fashion-mnist-mini", "e.yaml", "--out", "figures", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "figures" / "fashion-mnist-mini-dirichlet.png").exists()
    assert fedkeel("data", "show", "fashion-mnist-mini", "--out", "x.jpg", cwd=tmp_path).returncode == 2


@pytest.mark.slow
def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from fedkeel.cli import main; main()", "run", *QUICK, "--out", "o"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert (tmp_path / "o" / "summary.json").exists()


def test_plot_compares_runs(finished: tuple[Path, str], tmp_path: Path) -> None:
    out, _ = finished
    done = fedkeel("plot", str(out), str(out), "--out", "both.svg", "--x", "virtual_seconds", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "<svg" in (tmp_path / "both.svg").read_text()
    assert fedkeel("plot", "nowhere", cwd=tmp_path).returncode == 2
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "experiment.yaml").write_text("just words")
    (tmp_path / "damaged" / "history.jsonl").write_text("[]\n")
    assert fedkeel("plot", "damaged", cwd=tmp_path).returncode == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--set", "dataset=mnits"], ["dataset.name", "mnits", "did you mean mnist"]),
        (["run", "--set", "clients=0"], ["clients", "0", "greater than 0"]),
        (["run", "--set", "participation=1.2"], ["participation", "1.2"]),
        (["run", "--set", "partition.kind=classes", "partition.classes=11"], ["partition.classes", "11", "10"]),
        (["run", "--set", "clients=7000"], ["clients", "7000", "6000"]),
        (["run", "missing.yaml"], ["missing.yaml", "No such file"]),
        (["run", "a.yaml", "b.yaml"], ["2 experiment files are given (a.yaml, b.yaml); keep one of them"]),
        (["run", "--set", "dataset=emnist-letters"], ["emnist-letters"]),
        (
            ["run", "--set", "model=textcnn"],
            ["model.name: textcnn needs token sequences (length,) with a vocabulary; got shape (1, 28, 28)"],
        ),
        (["run", "--set", "model=nowhere:net"], ["model.name", "nowhere:net", "module:function"]),
        (["run", "--set", "model=custom:Net"], ["model.name", "run(model=...)"]),
        (["run", "--out", "full"], ["out", "full", "not empty"]),
        (["run", "--out", "full/file"], ["out", "is a file"]),
        (["run", "--out", "full/file/below"], ["out", "full/file/below"]),
        (["run", "--rounds", "3"], ["there is no option --rounds; settings are given as --set rounds=..."]),
        (["data", "get", "nothing"], ["dataset.name", "nothing"]),
        (["list", "things"], ["things", "algorithms"]),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(arguments: list[str], words: list[str], tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    done = fedkeel(*arguments, cwd=tmp_path, env={"FEDKEEL_DATA": str(tmp_path / "full" / "cache")})
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
    assert not (tmp_path / "runs").exists(), "a run folder was left behind"
    assert [p.name for p in (tmp_path / "full").iterdir() if p.name != "cache"] == ["file"]


def test_divergence_has_its_own_code(tmp_path: Path) -> None:
    done = fedkeel("run", "--set", *QUICK, "local.lr=1e38", cwd=tmp_path)
    assert done.returncode == 3
    assert "diverged in round" in done.stderr


@pytest.mark.slow
def test_interrupt_keeps_what_was_recorded(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from fedkeel.cli import main; main()", "run", "rounds=1000000", "model=linear"]
    history = tmp_path / "o" / "history.jsonl"
    code, errors = interrupted([*command, "--out", "o"], tmp_path, history)
    assert code == 130
    assert "stopping: a round that is not over in" in errors
    assert "fedkeel run --resume o" in errors
    assert json.loads(history.read_text().splitlines()[0])["round"] == 1


def test_debug_lets_the_error_through_to_python(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="clients must be greater than 0; got 0"):
        fedkeel("run", "--debug", "--set", "clients=0", cwd=tmp_path)


@pytest.mark.slow
def test_own_model_and_data_by_name(tmp_path: Path) -> None:
    (tmp_path / "own_parts.py").write_text(
        "import numpy as np, torch\n"
        "from fedkeel import FederatedData\n"
        "def net(width=4):\n"
        "    return torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.ReLU(), torch.nn.Linear(width, 2))\n"
        "def narrow():\n"
        "    return torch.nn.Linear(3, 1)\n"
        "def data():\n"
        "    x = np.random.default_rng(0).normal(size=(200, 3))\n"
        "    return FederatedData.from_arrays(x, (x[:, 0] > 0).astype(int), clients=5)\n"
    )
    settings = ["dataset=own_parts:data", "model=own_parts:net", "model.width=6", "rounds=2"]
    done = fedkeel("run", "--set", *settings, "--out", "o", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "o" / "summary.json").read_text())
    assert (summary["model"], summary["clients"], summary["parameters"]) == ("own_parts:net", 5, 4 * 6 + 7 * 2)
    assert fedkeel("run", "o/experiment.yaml", "--out", "again", cwd=tmp_path).returncode == 0
    bad = fedkeel("run", "--set", "dataset=own_parts:data", "model=own_parts:narrow", "--out", "p", cwd=tmp_path)
    assert bad.returncode == 2
    assert "[32, 1]" in bad.stderr
    assert "0 to 1" in bad.stderr
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("run", "An experiment file, and settings"),
        ("compare", "An experiment file, and settings"),
        ("report", "Run folders and folders of comparisons"),
        ("watch", "A run may start there later"),
    ],
)
def test_help_says_what_arguments_mean(command: str, words: str, tmp_path: Path) -> None:
    told = fedkeel(command, "--help", cwd=tmp_path, env={"COLUMNS": "200"})
    assert words in " ".join(told.stdout.split())
