"""docs/scaling.md: its commands and settings exist, and its templates can be read; the script for SLURM is tried."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from fedkeel import Experiment
from fedkeel.local.settings import ExecutorSettings
from tests.helpers import pages
from tests.helpers.pages import parsed
from tests.helpers.repository import ROOT

PAGE = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
TEMPLATES = ROOT / "examples" / "cluster"
SCRIPT = TEMPLATES / "slurm.sh"
COMMANDS = [
    line
    for kind, text in pages.blocks(PAGE)
    if kind == "bash"
    for line in text.splitlines()
    if line.startswith("fedkeel ")
]
STAND_INS = {
    "scontrol": "printf 'node1\\nnode2\\nnode3\\n'",
    "hostname": "echo 10.0.0.1 10.9.9.9",
    "srun": """while [ "${1#--}" != "$1" ]; do case $1 in --nodelist=*) node=${1#*=} ;; esac; shift; done
[ "$1" = hostname ] && exec "$@"
echo "$node: $*" >> told
exec sleep 60""",
    "ray": "echo Active:; sed 's/.*/ 1 node_&/' told; echo Pending:; echo ' no node_'",
    "fedkeel": """echo "fedkeel $*" >> told
trap 'echo stopped >> told; exit 7' TERM
[ "$2" = long ] && for _ in $(seq 600); do sleep 0.1; done
exit 3""",
}


def test_every_command_of_the_page_exists() -> None:
    assert len(COMMANDS) >= 2
    for line in COMMANDS:
        words = shlex.split(line, comments=True)[1:]
        assert parsed(words) == "run"
        settings = [word for word in words if "=" in word]
        assert Experiment.load(overrides=settings).executor.kind == "ray"


def test_the_settings_of_the_page_are_those_of_ray() -> None:
    ours = {f"executor.{name}" for name in ("address", "workers", "cpus", "gpus", "memory")}
    assert {*re.findall(r"^\| `(executor\.\w+)` \|", PAGE, re.MULTILINE)} == ours
    assert {name.partition(".")[2] for name in re.findall(r"`(executor\.\w+)", PAGE)} <= {
        *ExecutorSettings.model_fields
    }


def test_the_script_can_be_read() -> None:
    assert subprocess.run(["bash", "-n", SCRIPT], check=False).returncode == 0


def test_the_template_for_ray_up_counts_its_machines() -> None:
    read = yaml.safe_load((TEMPLATES / "ray-up.yaml").read_text(encoding="utf-8"))
    assert read["min_workers"] == read["max_workers"] == len(read["provider"]["worker_ips"])


def job(place: Path, *words: str) -> subprocess.Popen[bytes]:
    """The script with stand-ins for everything that it calls, which write into `told`."""
    programs = place / "bin"
    programs.mkdir()
    for name, does in STAND_INS.items():
        (programs / name).write_text(f"#!/bin/bash\n{does}\n")
        (programs / name).chmod(0o755)
    (programs / "activate").write_text("")
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(place),
        "ENVIRONMENT": str(place),
        "SLURM_JOB_NODELIST": "node[1-3]",
        "SLURM_CPUS_PER_TASK": "8",
        "SLURM_MEM_PER_NODE": "1000",
    }
    return subprocess.Popen(["bash", SCRIPT, *words], cwd=place, env=environment, stderr=subprocess.DEVNULL)


def test_the_script_starts_ray_everywhere_runs_and_ends_everything(tmp_path: Path) -> None:
    assert job(tmp_path, "one.yaml").wait(30) == 3  # the code of the run
    *started, ran = (tmp_path / "told").read_text().splitlines()
    common = "--num-cpus=8 --memory=734003000 --object-store-memory=314573000"
    head = f"--head --node-ip-address=10.0.0.1 --port=6379 {common} --include-dashboard=false"
    others = [f"{node}: ray start --address=10.0.0.1:6379 {common} --block" for node in ("node2", "node3")]
    assert sorted(started) == [f"node1: ray start {head} --block", *others]
    assert ran == "fedkeel run one.yaml --set executor.kind=ray executor.address=10.0.0.1:6379"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_run_which_ends_in_its_own_time(tmp_path: Path, number: signal.Signals) -> None:
    running, told, end = job(tmp_path, "long"), tmp_path / "told", time.monotonic() + 30
    while not told.exists() or "fedkeel" not in told.read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
    running.send_signal(number)
    assert running.wait(30) == 7
    assert told.read_text().endswith("stopped\n")
