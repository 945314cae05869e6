"""The engine: what runs, how, how often, and what becomes of runs that fail."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedkeel.errors import InputError, StoppedError
from fedkeel.local.settings import ExecutorSettings
from fedkeel.runner.stopping import Stop
from fedkeel.study import engine
from fedkeel.study.crew import Crew
from fedkeel.study.engine import Begun, execute
from fedkeel.study.export import as_csv
from fedkeel.study.plan import Comparison
from fedkeel.study.results import collect
from fedkeel.study.store import EXECUTORS, Store
from fedkeel.study.table import columns, run_columns
from fedkeel.study.tasks import Ended, Estimate, Moved, SettleTask
from tests.helpers.studies import OPEN, Event, Watch, comparison_of, holder, small, until, variants

LONGER = ["rounds=80", "evaluate_every=80"]


def states(plan: Comparison, place: Path) -> dict[str, str]:
    return {each.name: each.state for each in collect(plan, place).outcomes}


def test_all_runs_of_a_plan_are_run_the_first_seed_first(tmp_path: Path) -> None:
    plan, watch = small(algorithms=["fedavg", "fedprox"], seeds=[1, 0]), Watch()
    begun = execute(plan.cases, tmp_path, jobs=1, watch=watch)
    assert list(watch.ended) == ["fedavg-seed0", "fedprox-seed0", "fedavg-seed1", "fedprox-seed1"]
    assert (begun.total, begun.jobs, begun.estimates.keys()) == (4, 1, {case.name for case in plan.cases})
    found = collect(plan, tmp_path)
    assert {each.state for each in found.outcomes} == {"finished"}
    for each in found.outcomes:
        assert str(watch.ended[each.name].score) == f"accuracy {each.value:.2%}"
        assert each.record is not None
        assert (each.record.experiment["seed"], each.record.experiment["algorithm"]["name"]) == (
            each.seed,
            each.variant,
        )


def test_what_is_finished_is_not_run_again_when_a_comparison_grows(tmp_path: Path) -> None:
    first = small(seeds=[0])
    execute(first.cases, tmp_path)
    before = {
        path: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.rglob("runs/*/*") if path.is_file()
    }
    plan, watch = small(algorithms=["fedavg", "fedprox"], seeds=[0, 1]), Watch()
    execute(plan.cases, tmp_path, watch=watch)
    assert [case.name for case in watch.begun.cases] == ["fedprox-seed0", "fedavg-seed1", "fedprox-seed1"]
    assert watch.begun.total == 4
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in before} == before
    assert set(states(plan, tmp_path).values()) == {"finished"}
    again = Watch()
    execute(plan.cases, tmp_path, watch=again)
    assert again.begun.cases == []
    assert again.ended == {}


def test_runs_go_on_side_by_side_and_stop_with_a_checkpoint_when_that_is_asked_for(tmp_path: Path) -> None:
    plan, stop, moved = small(*LONGER), Stop(), set[str]()

    def act(event: Event) -> None:
        if isinstance(event, Moved) and event.round:
            moved.add(event.name)
            stop.asked = len(moved) == 2

    watch = Watch(act)
    with pytest.raises(StoppedError, match="stopped; 2 of 2 runs are left, and the same command continues from here"):
        execute(plan.cases, tmp_path / "a", jobs=2, watch=watch, stop=stop)
    assert {each.state for each in watch.ended.values()} == {"stopped"}
    assert not stop.heard
    for case in plan.cases:
        assert list((Store(tmp_path / "a").folder(case.name) / "checkpoint").iterdir())
    assert set(states(plan, tmp_path / "a").values()) == {"stopped"}
    again = Watch()
    execute(plan.cases, tmp_path / "a", watch=again)
    first = {each.name: each.round for each in reversed(again.events) if isinstance(each, Moved)}
    assert min(first.values()) > 0  # they went on, and did not begin anew
    execute(plan.cases, tmp_path / "b")
    assert run_columns(collect(plan, tmp_path / "a")) == run_columns(collect(plan, tmp_path / "b"))


def test_a_stop_before_the_first_run_begins_none(tmp_path: Path) -> None:
    stop = Stop()
    stop.asked = True
    with pytest.raises(StoppedError, match="stopped before the first run"):
        execute(small().cases, tmp_path, stop=stop)
    stop = Stop()
    with pytest.raises(StoppedError, match="stopped; 2 of 2 runs are left"):
        execute(small().cases, tmp_path, stop=stop, watch=lambda _: setattr(stop, "asked", True))
    assert not (tmp_path / "runs").exists()


def test_a_run_that_diverges_is_told_and_not_repeated_while_others_go_on(tmp_path: Path) -> None:
    plan = variants({"wild": ["local.lr=1.0e+38"], "calm": []}, seeds=[0, 1])
    watch = Watch()
    execute(plan.cases, tmp_path, watch=watch)
    assert watch.ended["wild-seed0"].kind == "DivergenceError"
    assert watch.ended["wild-seed0"].error.startswith("training diverged in round 1")
    assert states(plan, tmp_path) == {
        **{"wild-seed0": "failed", "wild-seed1": "failed"},
        **{"calm-seed0": "finished", "calm-seed1": "finished"},
    }
    again = Watch()
    execute(plan.cases, tmp_path, watch=again)
    assert again.begun.cases == []
    outcome = collect(plan, tmp_path).outcomes[0]
    assert outcome.failure is not None
    assert outcome.failure.startswith("training diverged")


def test_what_is_wrong_with_all_variants_is_told_of_none_alone(tmp_path: Path) -> None:
    missing = "dataset=there_is_no_such_module:load"
    with pytest.raises(InputError, match=r"^dataset\.name: "):
        execute(variants({"a": [], "b": ["algorithm=fedprox"]}, words=[missing]).cases, tmp_path / "a", jobs=2)
    with pytest.raises(InputError, match=r"^b: dataset\.name: "):
        execute(variants({"a": [], "b": [missing], "c": [missing]}).cases, tmp_path / "b", jobs=2)
    assert [*tmp_path.iterdir()] == []


def test_a_run_whose_worker_is_killed_fails_and_is_repeated_next_time(tmp_path: Path) -> None:
    plan = variants({"victim": LONGER, "other": []}, seeds=[0, 1])
    victim = Store(tmp_path).folder("victim-seed0")

    def kill(event: Event) -> None:
        if isinstance(event, Moved) and event.name == "victim-seed0" and not event.round:
            os.kill(holder(victim), signal.SIGKILL)

    watch = Watch(kill)
    execute(plan.cases, tmp_path, jobs=2, watch=watch)
    assert {name for name, each in watch.ended.items() if each.state == "failed"} == {"victim-seed0"}
    told = watch.ended["victim-seed0"]
    assert (told.kind, told.error) == (
        "WorkerDied",
        "its process was killed by signal 9; there may not be enough memory",
    )
    found = collect(plan, tmp_path)
    assert [each.failure for each in found.outcomes] == [told.error, None, None, None]
    again = Watch()
    execute(plan.cases, tmp_path, watch=again)
    assert [case.name for case in again.begun.cases] == ["victim-seed0"]
    assert set(states(plan, tmp_path).values()) == {"finished"}


def test_a_worker_that_is_killed_between_runs_costs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workers, start = list[Any](), Crew._start

    def kept(self: Crew, place: int) -> Any:
        workers.append(start(self, place))
        return workers[-1]

    def kill(event: Event) -> None:
        if isinstance(event, Ended):
            os.kill(workers[-1].process.pid, signal.SIGKILL)
            workers[-1].process.join()

    monkeypatch.setattr(Crew, "_start", kept)
    plan = small(seeds=[0, 1, 2])
    execute(plan.cases, tmp_path, jobs=1, watch=kill)
    assert set(states(plan, tmp_path).values()) == {"finished"}
    assert len(workers) == 3


@pytest.mark.parametrize(
    ("name", "code", "sentence"),
    [
        (
            "mistaken",
            "raise RuntimeError('my own mistake')",
            "draw failed (mistaken.py, line 2, in draw: RuntimeError: my own mistake)",
        ),
        ("leaving", "raise SystemExit(5)", "leaving:draw failed (leaving.py, line 2, in draw: SystemExit: 5)"),
        ("crashing", "import os; os._exit(7)", "its process ended with code 7"),
    ],
)
def test_what_a_users_code_does_fails_its_run_alone(
    name: str, code: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{name}.py").write_text(f"def draw(sizes, count, free, rng):\n    {code}\n")
    monkeypatch.syspath_prepend(tmp_path)
    plan = variants({"bad": [f"sampling={name}:draw"], "good": []})
    watch = Watch()
    execute(plan.cases, tmp_path / "out", jobs=1, watch=watch, estimate=False)
    assert states(plan, tmp_path / "out") == {"bad-seed0": "failed", "good-seed0": "finished"}
    assert sentence in watch.ended["bad-seed0"].error


def test_a_variant_whose_process_dies_while_it_is_measured_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deadly.py").write_text("def draw(sizes, count, free, rng):\n    import os; os._exit(7)\n")
    monkeypatch.syspath_prepend(tmp_path)
    plan, watch = variants({"bad": ["sampling=deadly:draw"], "good": []}), Watch()
    execute(plan.cases, tmp_path / "out", jobs=1, watch=watch)
    assert states(plan, tmp_path / "out") == {"bad-seed0": "failed", "good-seed0": "finished"}
    told = watch.ended["bad-seed0"]
    assert (told.kind, told.error) == ("WorkerDied", "its process ended with code 7")
    assert Store(tmp_path / "out").kind("bad-seed0") == "WorkerDied"


def test_the_plan_is_kept_when_nothing_is_known_to_be_wrong(tmp_path: Path) -> None:
    bad = comparison_of([*OPEN, "partition={kind: shards, shards_per_client: 50}"], ["fedavg"], [0])
    with pytest.raises(InputError):
        execute(bad.cases, tmp_path, ready=lambda: Store(tmp_path).keep(bad))
    mended = comparison_of(OPEN, ["fedavg"], [0])
    execute(mended.cases, tmp_path, ready=lambda: Store(tmp_path).keep(mended))
    assert states(mended, tmp_path) == {"fedavg-seed0": "finished"}


def settled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The variants of the experiments that executors are settled for, from now on."""
    found, work = list[str](), Crew.work

    def watched(self: Crew, tasks: Any, stop: Stop) -> Any:
        found.extend(task.experiment.algorithm.name for task in tasks if isinstance(task, SettleTask))
        return work(self, tasks, stop)

    monkeypatch.setattr(Crew, "work", watched)
    return found


def executor(place: Path, name: str) -> ExecutorSettings:
    text = (Store(place).folder(name) / "experiment.yaml").read_text()
    return ExecutorSettings(**yaml.safe_load(text)["executor"])


def test_runs_that_differ_in_their_seed_alone_train_in_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = settled(monkeypatch)
    plan = comparison_of(OPEN, ["fedavg", "fedprox"], [0, 1])
    begun = execute(plan.cases, tmp_path)
    assert sorted(tasks) == ["fedavg", "fedprox"]
    assert len(json.loads((tmp_path / EXECUTORS).read_text())) == 2
    for case in plan.cases:
        estimate = begun.estimates[case.name]
        assert estimate.executor.settled
        assert estimate.bytes > 1e7
        assert executor(tmp_path, case.name) == estimate.executor
    tasks.clear()
    other = {"kind": "vectorised", "stack": 3, "native": False, "channels_last": False}
    told = {key: {**each, "executor": other} for key, each in json.loads((tmp_path / EXECUTORS).read_text()).items()}
    (tmp_path / EXECUTORS).write_text(json.dumps(told))
    execute(comparison_of(OPEN, ["fedavg", "fedprox", "fedagg"], [0, 1, 2]).cases, tmp_path)
    assert tasks == ["fedagg"]  # the others are as they were, also after a restart
    assert executor(tmp_path, "fedprox-seed2") == ExecutorSettings(**other)
    assert len(json.loads((tmp_path / EXECUTORS).read_text())) == 3


def test_a_rehearsal_tells_what_runs_take_and_leaves_nothing(tmp_path: Path) -> None:
    begun = execute(comparison_of(OPEN, ["fedavg"], [0, 1]).cases, tmp_path / "none", dry=True)
    assert [case.name for case in begun.cases] == ["fedavg-seed0", "fedavg-seed1"]
    assert set(begun.estimates) == {"fedavg-seed0", "fedavg-seed1"}
    assert begun.bytes is not None
    assert not (tmp_path / "none").exists()


def test_what_cannot_be_is_refused_before_the_first_run(tmp_path: Path) -> None:
    plan = comparison_of([*OPEN, "partition={kind: shards, shards_per_client: 50}"], ["fedavg"], [0])
    with pytest.raises(InputError, match=r"^fedavg: partition.*; "):
        execute(plan.cases, tmp_path)
    assert not (tmp_path / "runs").exists()
    settled_one = comparison_of(
        [*OPEN, "partition={kind: shards, shards_per_client: 50}", "executor=serial"], ["fedavg"], [0]
    )
    with pytest.raises(InputError, match=r"^fedavg: partition.*; "):
        execute(settled_one.cases, tmp_path)
    execute(settled_one.cases, tmp_path, estimate=False)
    assert states(settled_one, tmp_path) == {"fedavg-seed0": "failed"}


def test_fewer_runs_go_on_at_a_time_where_memory_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, watch = comparison_of(OPEN, ["fedavg", "fedprox"], [0, 1]), Watch()
    monkeypatch.setattr(engine, "free_bytes", lambda: 1)
    execute(plan.cases, tmp_path, watch=watch)  # two workers have settled executors by then
    assert watch.begun.jobs == 1
    assert watch.begun.notes[0].endswith("GB are free; so 1 run goes on at a time")
    names = list(dict.fromkeys(each.name for each in watch.events if not isinstance(each, Begun)))
    told = [each.name for each in watch.events if not isinstance(each, Begun)]
    assert told == sorted(told, key=names.index)  # one after the other
    assert set(states(plan, tmp_path).values()) == {"finished"}
    asked = execute(plan.cases, tmp_path, jobs=2)
    assert (asked.jobs, asked.notes) == (2, ())


def test_as_many_as_were_asked_for_are_only_told() -> None:
    plan = small()
    estimates = {case.name: Estimate(ExecutorSettings(kind="serial"), 10.0, 5 * 10**9) for case in plan.cases}
    begun = Begun(plan.cases, 2, estimates, 2)
    assert (begun.seconds, begun.bytes) == (10.0, 10**10)
    asked, free = engine._fitting(begun, True, [6 * 10**9]), engine._fitting(begun, False, [6 * 10**9])
    assert (asked.jobs, free.jobs) == (2, 1)
    assert asked.notes == ["2 runs at a time take about 10 GB of memory, and 6 GB are free"]
    assert engine._fitting(begun, False, [6 * 10**9, 5 * 10**9]).jobs == 2
    scattered = engine._fitting(begun, False, [4 * 10**9] * 3)
    assert scattered.jobs == 1
    assert scattered.notes[0].endswith("and 12 GB are free on 3 machines; so 1 run goes on at a time")
    assert Begun(plan.cases, 2, {}, 2).seconds is Begun(plan.cases, 2, {}, 2).bytes is None


def test_a_second_command_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    plan, told = small(), list[str]()

    def again(event: Event) -> None:
        if isinstance(event, Begun):
            with pytest.raises(InputError, match="is in use; choose another folder, or wait until the other") as error:
                execute(plan.cases, tmp_path)
            told.append(str(error.value))

    execute(plan.cases, tmp_path, watch=again)
    assert len(told) == 1
    assert set(states(plan, tmp_path).values()) == {"finished"}


def test_two_fresh_executions_give_the_same_table(tmp_path: Path) -> None:
    plan = small(algorithms=["fedavg", "fedasmu"])
    for name in "ab":
        execute(plan.cases, tmp_path / name, jobs=1 if name == "a" else 2)
    one, other = (as_csv(columns(collect(plan, tmp_path / name))) for name in "ab")
    assert one == other
    assert one.count("\n") == 3


def test_a_run_that_was_complete_when_its_process_died_is_finished(tmp_path: Path) -> None:
    plan = small(seeds=[0])
    execute(plan.cases, tmp_path)
    Store(tmp_path).fail("fedavg-seed0", "WorkerDied", "its process was killed")
    assert states(plan, tmp_path) == {"fedavg-seed0": "finished"}


def test_workers_end_with_their_crew(tmp_path: Path) -> None:
    plan = small(*LONGER)

    def interrupt(event: Event) -> None:
        if isinstance(event, Moved):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(plan.cases, tmp_path, watch=interrupt)
    until(lambda: not holder(tmp_path))
    assert "finished" not in states(plan, tmp_path).values()
