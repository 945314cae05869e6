"""Studies on a Ray cluster: the same bytes as on one machine, whatever is killed meanwhile; and nobody is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedkeel.cli.studying import rehearsed
from fedkeel.errors import InputError, MishapError, StoppedError
from fedkeel.runner.stopping import Stop
from fedkeel.study import engine, outposts, sharing, worker
from fedkeel.study.engine import execute
from fedkeel.study.export import as_csv
from fedkeel.study.outposts import Outposts, on_ray
from fedkeel.study.plan import Comparison
from fedkeel.study.results import collect
from fedkeel.study.store import Store
from fedkeel.study.table import columns
from fedkeel.study.tasks import Lost, Moved, RunTask, SettleTask
from tests.helpers.clusters import Local, cluster
from tests.helpers.commands import in_a_process
from tests.helpers.studies import OPEN, Event, Watch, comparison_of, on_top, small, until, variants

ROUNDS = 40
LONGER = [f"rounds={ROUNDS}", "evaluate_every=10", "checkpoint.rounds=1", "sampling=slow:draw"]
SLOW = """
import time
import numpy as np


def draw(sizes, count, free, rng):
    time.sleep(0.1)
    return rng.permutation(np.flatnonzero(free))[:count]
"""


@pytest.fixture(scope="module")
def ray() -> Iterator[Local]:
    """Two machines, or what Ray takes for them; only loopback."""
    with cluster(1, 2) as found:
        yield found


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with modules of a user's: with one of them, rounds take a while; another one fails."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "slow.py").write_text(SLOW)
    (folder / "failing.py").write_text("def draw(sizes, count, free, rng):\n    raise RuntimeError('not here')\n")
    return folder


@pytest.fixture(scope="module")
def crew(ray: Local, own: Path) -> Iterator[Outposts]:
    """For all tests, as workers take seconds to start; when it has ended, nobody is left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(own)
        with Outposts(ray.address) as found:
            yield found
    until(lambda: not workers())


@pytest.fixture
def alone(crew: Outposts) -> Iterator[Outposts]:
    """For one run at a time, without an actor yet."""
    crew.join(None)
    crew.release()
    crew.size = 1
    yield crew
    crew.release()


def processes(*words: str) -> list[int]:
    """Of this cluster, those whose command or environment contains all these words."""
    wanted = [word.encode() for word in (f"RAY_TMPDIR={os.environ['RAY_TMPDIR']}", *words)]
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            told = (place / "environ").read_bytes() + (place / "cmdline").read_bytes()
        except OSError:
            continue
        if all(word in told for word in wanted):
            found.append(int(place.name))
    return found


def workers(*words: str) -> list[int]:
    """Actors, and the processes that they have runs made in, with those that these are forked from."""
    return [*processes("ray::Outpost", *words), *processes("FEDKEEL_CORES=1", "multiprocessing", *words)]


def table(plan: Comparison, place: Path) -> str:
    return as_csv(columns(collect(plan, place)))


def results(plan: Comparison, place: Path) -> dict[str, Any]:
    """All files of all runs that do not tell of times."""
    found: dict[str, Any] = {"table.csv": table(plan, place)}
    for case in plan.cases:
        folder = Store(place).folder(case.name)
        for path in (each for each in folder.rglob("*") if each.is_file()):
            name = f"{case.name}/{path.relative_to(folder)}"
            if path.suffix == ".jsonl":
                rows = [json.loads(line) for line in path.read_text().splitlines()]
                found[name] = [{key: value for key, value in row.items() if "wall" not in key} for row in rows]
            else:
                found[name] = path.read_bytes() if path.suffix == ".safetensors" else None
    return found


def first_round(watch: Watch, name: str) -> int:
    return next(each.round for each in watch.events if isinstance(each, Moved) and each.name == name)


def at_round(number: int, act: Callable[[], object]) -> Callable[[Event], None]:
    """Do something once, when a run has got so far and that was copied."""
    done: list[bool] = []

    def take(event: Event) -> None:
        if isinstance(event, Moved) and event.round >= number and not done:
            done.append(True)
            act()

    return take


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    plan = small("executor.kind=ray", seeds=[0])
    with pytest.raises(InputError, match=r"--ray spreads runs over a cluster, and executor\.kind=ray spreads the"):
        execute(plan.cases, tmp_path, ray=Outposts("auto"))
    assert engine._room(plan.cases, None, None) == 1
    for wrong in ("nowhere", "ray://127.0.0.1:10001"):
        with pytest.raises(InputError, match=r"^--ray"), on_ray(wrong):
            pass
    with pytest.raises(InputError, match=r"^--ray must be local, HOST:PORT, such as .*, or auto; got 'nowhere'"):
        Outposts("nowhere")
    with on_ray(None) as crew:
        assert crew is None


def test_a_forgotten_address_is_not_the_next_option(tmp_path: Path) -> None:
    done = in_a_process("compare", *OPEN, "--ray", "--out", "x", cwd=tmp_path)
    assert done.returncode == 2
    assert "--ray needs a value: local, auto or HOST:PORT; got --out" in done.stderr


@pytest.mark.extras
def test_an_address_where_nobody_is_is_told_at_once(tmp_path: Path) -> None:
    done = in_a_process("compare", *OPEN, "--algorithms", "fedavg", "--ray", "127.0.0.1:9", cwd=tmp_path)
    assert done.returncode == 2
    assert "fedkeel: --ray: nothing answers at 127.0.0.1:9" in done.stderr
    assert "executor" not in done.stderr


@pytest.mark.extras
def test_runs_of_a_cluster_are_those_of_one_machine(crew: Outposts, tmp_path: Path) -> None:
    plan = small("rounds=6", algorithms=["fedavg", "fedasmu"], seeds=[0, 1])
    execute(plan.cases, tmp_path / "here", jobs=2)
    (tmp_path / "there").mkdir()
    (tmp_path / "there/executors.json").write_bytes((tmp_path / "here/executors.json").read_bytes())
    watch, again = Watch(), Watch()
    execute(plan.cases, tmp_path / "there", jobs=2, watch=watch, ray=crew)
    execute(plan.cases, tmp_path / "there", watch=again, ray=crew)
    assert watch.begun.where == "on a Ray cluster of 2 machines with 3 CPUs"
    assert watch.begun.jobs == 2
    assert {each.state for each in watch.ended.values()} == {"finished"}
    assert again.begun.cases == []
    assert results(plan, tmp_path / "there") == results(plan, tmp_path / "here")


@pytest.mark.extras
def test_a_stop_ends_all_runs_and_the_same_command_continues(crew: Outposts, tmp_path: Path) -> None:
    plan, stop = variants({"a": [], "b": ["algorithm=fedprox"]}, words=LONGER), Stop()
    execute(plan.cases, tmp_path / "here")
    watch = Watch(at_round(5, lambda: setattr(stop, "asked", True)))
    with pytest.raises(StoppedError, match="2 of 2 runs are left, and the same command continues from here"):
        execute(plan.cases, tmp_path / "there", jobs=1, watch=watch, stop=stop, ray=crew)
    assert {name: each.state for name, each in watch.ended.items()} == {"a-seed0": "stopped"}
    assert [each.state for each in collect(plan, tmp_path / "there").outcomes] == ["stopped", "not begun"]
    again = Watch()
    execute(plan.cases, tmp_path / "there", watch=again, ray=crew)
    assert first_round(again, "a-seed0") >= 5
    assert results(plan, tmp_path / "there") == results(plan, tmp_path / "here")


@pytest.mark.extras
def test_errors_name_the_machine(crew: Outposts, tmp_path: Path) -> None:
    plan = variants({"bad": ["sampling=failing:draw"], "wild": ["local.lr=1.0e+38"], "good": []})
    missing = variants({"a": ["dataset=there_is_no_such_module:load"]})
    watch = Watch()
    execute(plan.cases, tmp_path / "out", watch=watch, ray=crew, estimate=False)
    with pytest.raises(InputError, match=r"^a: dataset.name: .*\(on the machine 127\.0\.0\.\d\)$"):
        execute(missing.cases, tmp_path / "missing", ray=crew)
    assert watch.ended["bad-seed0"].error.rpartition(".")[0].endswith("RuntimeError: not here) (on the machine 127.0.0")
    assert "machine" not in watch.ended["wild-seed0"].error
    assert watch.ended["good-seed0"].state == "finished"


@pytest.mark.extras
def test_a_rehearsal_says_what_was_found(crew: Outposts, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rehearsed(execute(small(seeds=[0, 1, 2, 3]).cases, tmp_path / "none", ray=crew, dry=True))
    told = " ".join(capsys.readouterr().out.split())
    assert "4 runs to do; on a Ray cluster of 2 machines with 3 CPUs, 3 at a time, about" in told
    assert not (tmp_path / "none").exists()


@pytest.mark.extras
def test_what_a_cluster_cannot_do_is_refused(crew: Outposts, tmp_path: Path) -> None:
    plan = small(seeds=[0])
    refused = r"--ray: the cluster has room for 3 runs of 1 CPU at a time, and 4 are needed; give fewer --jobs, or add"
    with pytest.raises(InputError, match=refused):
        execute(plan.cases, tmp_path, jobs=4, ray=crew)
    assert not (tmp_path / "runs").exists()


@pytest.mark.extras
def test_a_run_whose_actor_is_killed_goes_on_elsewhere(crew: Outposts, tmp_path: Path) -> None:
    plan = variants({"a": []}, words=LONGER)
    execute(plan.cases, tmp_path / "here")
    states = list[str]()

    def kill() -> None:
        states.append(collect(plan, tmp_path / "there").outcomes[0].state)
        for actor in processes("ray::Outpost"):  # also one that has nothing to do
            os.kill(actor, signal.SIGKILL)
        until(
            lambda: not processes("FEDKEEL_CORES=1", "multiprocessing")
        )  # whatever the run is doing, its process ends

    watch = Watch(at_round(25, kill))
    execute(plan.cases, tmp_path / "there", watch=watch, ray=crew)
    place = max(number for number, each in enumerate(watch.events) if isinstance(each, Lost))
    after = [each.round for each in watch.events[place:] if isinstance(each, Moved)]
    assert 0 < after[0] < max(after)
    assert states == ["going on"]
    assert watch.ended["a-seed0"].state == "finished"
    assert results(plan, tmp_path / "there") == results(plan, tmp_path / "here")


@pytest.mark.extras
def test_a_machine_that_is_killed_changes_nothing(ray: Local, crew: Outposts, tmp_path: Path) -> None:
    plan = variants({"a": [], "b": ["algorithm=fedprox"]}, seeds=(0, 1), words=LONGER)
    execute(plan.cases, tmp_path / "here")
    crew.__exit__()
    node = ray.add(1)
    watch = Watch(at_round(20, lambda: os.kill(ray.raylet(node), signal.SIGKILL)))
    execute(plan.cases, tmp_path / "there", jobs=4, watch=watch, ray=crew)
    crew.__exit__()
    assert [each.why for each in watch.events if isinstance(each, Lost)]
    assert {each.state for each in watch.ended.values()} == {"finished"}
    assert results(plan, tmp_path / "there") == results(plan, tmp_path / "here")


SETTINGS = on_top(*LONGER)
COMMAND = ["compare", *SETTINGS, "--algorithms", "fedavg", "--seeds", "0", "--out", "there"]


@pytest.mark.extras
def test_a_killed_command_leaves_nobody_and_goes_on(crew: Outposts, own: Path, tmp_path: Path) -> None:
    plan = comparison_of(SETTINGS, ["fedavg"], [0])
    execute(plan.cases, tmp_path / "here")
    log = (tmp_path / "log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-c", "from fedkeel.cli import main; main()", *COMMAND, "--ray", "local"],
        cwd=tmp_path,
        stdout=log,
        stderr=log,
        env={**os.environ, "PYTHONPATH": str(own)},
    )
    run = tmp_path / "there/runs/fedavg-seed0"
    until(lambda: process.poll() is not None or [*run.glob("checkpoint/round-*")])
    process.kill()
    assert process.wait() == -signal.SIGKILL, (tmp_path / "log").read_text()
    until(lambda: not workers(f"PYTHONPATH={own}"))
    assert not (run / "summary.json").exists()
    watch = Watch()
    execute(plan.cases, tmp_path / "there", watch=watch, ray=crew)
    assert first_round(watch, "fedavg-seed0") > 0
    assert results(plan, tmp_path / "there") == results(plan, tmp_path / "here")


@pytest.mark.extras
def test_a_few_long_runs_share_the_workers_of_the_cluster(
    crew: Outposts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = small("executor={kind: vectorised, stack: 1, native: false}", "rounds=4", "per_round=3", seeds=[0])
    execute(plan.cases, tmp_path / "here")
    monkeypatch.setattr(sharing, "LONG_SECONDS", 0.0)
    crew.join(None)
    until(lambda: crew.free == 3)  # workers of the command that was killed leave
    watch = Watch()
    execute(plan.cases, tmp_path / "there", watch=watch, ray=crew)
    assert watch.begun.notes == ["as there are few runs, 3 workers of the cluster train the clients of each"]
    assert {name: each.error for name, each in watch.ended.items() if each.state != "finished"} == {}
    for case in plan.cases:
        told = yaml.safe_load((Store(tmp_path / "there").folder(case.name) / "experiment.yaml").read_text())
        assert (told["executor"]["kind"], told["executor"]["workers"]) == ("ray", 3)
        assert told["executor"]["address"] is None
    assert results(plan, tmp_path / "there") == results(plan, tmp_path / "here")


@pytest.mark.extras
def test_a_shared_run_begins_with_the_workers_that_are_left(alone: Outposts, tmp_path: Path) -> None:
    until(lambda: alone.free == 3)
    asked = small("executor={kind: ray, workers: 3, stack: 1, native: false}", seeds=[0]).cases[0].experiment
    task = RunTask("a", asked, tmp_path, cluster=alone.address)
    with worker._joined(task) as joined:
        assert joined.experiment.executor.workers == 3
    assert next(iter(alone.work([SettleTask("a", small().cases[0].experiment)], Stop())))  # its actor stays
    with worker._joined(task) as joined:
        assert joined.experiment.executor.workers == 2


@pytest.mark.extras
def test_where_no_worker_can_start_the_command_ends(alone: Outposts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outposts, "START_SECONDS", 0.0)
    monkeypatch.setattr(outposts, "_NEEDS", {"CPU": 1000.0})
    task = SettleTask("a", small().cases[0].experiment)
    with pytest.raises(
        MishapError, match=r"no worker could be started .* finished runs are safe, and the same command"
    ):
        next(alone.work([task], Stop()))


@pytest.mark.extras
def test_a_machine_that_rounds_otherwise_gets_no_run(alone: Outposts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outposts, "START_SECONDS", 10.0)
    monkeypatch.setattr(outposts, "objection", lambda host, _: f"{host} rounds otherwise")
    with pytest.raises(MishapError, match=r"no worker could be started .* \(127\.0\.0\.2 rounds otherwise\); finished"):
        next(alone.work([SettleTask("a", small().cases[0].experiment)], Stop()))


@pytest.mark.extras
def test_the_installed_command_compares_runs_that_each_use_the_cluster(ray: Local, tmp_path: Path) -> None:
    """Their processes have the script itself among their modules, under two names."""
    executor = {"kind": "ray", "address": ray.address, "workers": 2, "stack": 2}
    (tmp_path / "small.yaml").write_text(
        yaml.safe_dump(
            {
                "dataset": {"name": "fashion-mnist-mini", "train_limit": 100, "test_limit": 50}, "model": "linear",
                "clients": 6, "per_round": 4, "rounds": 2, "executor": executor,
            }
        )
    )  # fmt: skip
    words = ["compare", "small.yaml", "--algorithms", "fedavg,fedagg", "--seeds", "0", "--out", "out"]
    done = subprocess.run(
        [Path(sys.executable).parent / "fedkeel", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for name in ("fedavg", "fedagg"):
        told = json.loads((tmp_path / "out" / "runs" / f"{name}-seed0" / "summary.json").read_text())
        assert told["ray"]["workers"] == 2
