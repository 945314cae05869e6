"""A search with Optuna: the same every time, also after an interruption."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from fedkeel.config.experiment import Experiment
from fedkeel.errors import InputError, MishapError, StoppedError
from fedkeel.record.runs import RunRecord
from fedkeel.runner.stopping import Stop
from fedkeel.study.adhoc import gather
from fedkeel.study.crew import DIED, Crew
from fedkeel.study.engine import Begun
from fedkeel.study.files import StudyFile
from fedkeel.study.plan import Case, Measure
from fedkeel.study.results import collect
from fedkeel.study.search import PLACES, WARM, search, steps
from fedkeel.study.space import SEARCH, TRIALS, Bounds, Search, Trial, distribution
from fedkeel.study.store import Store, is_comparison
from fedkeel.study.sweep import ranking, sweep_plan
from fedkeel.study.table import lines
from fedkeel.study.tasks import Ended, Moved
from tests.helpers.studies import Event, on_top, row, small, write_run

pytestmark = pytest.mark.extras
optuna = pytest.importorskip("optuna")

RATES = "local.lr=0.0001..3"
TRIED = 8
BEHIND = "behind the median of earlier trials"


def what(
    trials: int,
    ranges: tuple[str, ...] = (RATES,),
    grid: tuple[str, ...] = (),
    words: tuple[str, ...] = (),
    **more: Any,
) -> Search:
    base = Experiment.build({}, on_top(*words)).model_dump(exclude_unset=True)
    given, asked = more.pop("given", StudyFile(base=base)), more.pop("asked", ())
    return Search.of(given, asked, grid, ranges, more.pop("seeds", [100, 101]), trials, **more)


def made(asked: Search, place: Path, watch: Any = lambda _: None, tell: Any = lambda _: None) -> list[Trial]:
    return search(asked, place, jobs=2, watch=watch, tell=tell, stop=Stop())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Trial], Path]:
    """A search that nobody disturbed, with trials enough that some are stopped early."""
    place = tmp_path_factory.mktemp("whole") / "out"
    return made(what(TRIED), place), place


def test_a_trial_is_stopped_where_it_falls_behind_the_median(whole: tuple[list[Trial], Path]) -> None:
    trials, place = whole
    assert [trial.number for trial in trials] == list(range(TRIED))
    seen = list[Trial]()
    for trial in trials:
        rounds = sorted(trial.steps)
        for number, round in enumerate(rounds):
            earlier = [each.steps[round] for each in seen if each.state == "complete" and round in each.steps]
            best = max(trial.steps[each] for each in rounds[: number + 1])
            done = sum(each.state == "complete" for each in seen)
            behind = done >= WARM and len(earlier) >= 2 and best < median(earlier)
            assert behind == (trial.state == "pruned" and round == rounds[-1])
        if trial.state == "complete":
            assert rounds == [1, 2, 3]
        assert trial.value == trial.steps[rounds[-1]]
        seen.append(trial)
    assert {trial.state for trial in trials} == {"complete", "pruned"}
    for trial in trials:
        runs = collect(what(TRIED).plan([trial]), place).outcomes
        mean = sum(each.history[max(trial.steps) - 1]["accuracy"] for each in runs) / len(runs)
        assert trial.value == pytest.approx(mean)
        (line,) = lines(collect(what(TRIED).plan([trial]), place))
        assert (line.failed, line.standing) == (0, "")
        assert (line.pruned > 0) == (trial.state == "pruned") == ("behind the median" in line.sentence)
        if trial.state == "complete":
            assert {each.state for each in runs} == {"finished"}
            lr = float(f"{trial.settings['local.lr']:.4g}")
            assert {each.record and each.record.experiment["local"]["lr"] for each in runs} == {lr}


def earlier(asked: Search, place: Path, *trials: Trial) -> None:
    """The folder of a search with trials that were made before."""
    place.mkdir(exist_ok=True)
    (place / SEARCH).write_text(json.dumps(asked.told()))
    (place / TRIALS).write_text("".join(json.dumps(asdict(trial)) + "\n" for trial in trials))


def tried(state: str, score: float, count: int, first: int = 0) -> list[Trial]:
    return [Trial(n, {"local.lr": 0.1}, score, state, {1: score}) for n in range(first, first + count)]


def test_a_trial_that_falls_behind_does_not_go_on(tmp_path: Path) -> None:
    asked, before = what(WARM + 1, words=("rounds=100000",)), tried("complete", 1.0, WARM)
    earlier(asked, tmp_path, *before)
    *kept, last = made(asked, tmp_path)
    assert kept == before
    assert (last.state, [*last.steps]) == ("pruned", [1])
    for each in collect(asked.plan([last]), tmp_path).outcomes:
        assert (each.state, each.failure) == ("pruned", BEHIND)


def last_by_hand(place: Path, before: list[Trial], failed: bool) -> Trial:
    """What becomes of a trial whose runs, written by hand, reached 0.3 and 0.5, after which the second may diverge."""
    asked, number = what(len(before) + 1), len(before)
    earlier(asked, place, *before)
    for seed, score in ((100, 0.3), (101, 0.5)):
        name = f"trial{number:04d}-seed{seed}"
        write_run(Store(place).folder(name), [row(1, score)], finished=not failed)
        if failed:
            Store(place).fail(name, "DivergenceError", "it diverged")
    return made(asked, place)[-1]


def test_trials_are_judged_by_complete_ones_alone_also_after_a_restart(tmp_path: Path) -> None:
    high = tried("complete", 0.9, WARM)
    assert last_by_hand(tmp_path / "a", high, False).state == "pruned"
    assert last_by_hand(tmp_path / "b", [*high, *tried("pruned", 0.1, 9, WARM)], False).state == "pruned"
    assert last_by_hand(tmp_path / "c", [*high, *tried("complete", 0.1, 9, WARM)], False).state == "complete"
    assert last_by_hand(tmp_path / "d", high[:-1], False).state == "complete"  # too few to judge by


def test_a_trial_that_diverged_late_counts_for_nothing(tmp_path: Path) -> None:
    found = last_by_hand(tmp_path / "a", tried("complete", 0.1, WARM), True)
    assert (found.state, found.value, found.steps) == ("failed", 0.0, {1: 0.4})
    # Whether one that is behind still diverges before it is stopped depends on the machine.
    assert last_by_hand(tmp_path / "b", tried("complete", 0.9, WARM), True).state == "pruned"


def test_a_search_goes_on_after_an_interruption_as_if_there_had_been_none(
    whole: tuple[list[Trial], Path], tmp_path: Path
) -> None:
    trials, place = whole
    told, stop = list[Trial](), Stop()
    middle = max(trial.number for trial in trials if trial.state == "complete")

    def halt(event: Event) -> None:  # in the middle of a trial
        stop.asked = stop.asked or (len(told) == middle and isinstance(event, Moved))

    with pytest.raises(StoppedError) as stopped:
        search(what(TRIED), tmp_path / "out", jobs=2, watch=halt, tell=told.append, stop=stop)
    done = len(told)
    assert done in (middle, middle + 1)  # the last rounds of a trial may be over before the stop is heard
    assert str(stopped.value).startswith(f"stopped; {done} of {TRIED} trials are done, and the same command continues")
    assert told == trials[:done]
    again = list[Trial]()
    assert made(what(TRIED), tmp_path / "out", tell=again.append) == trials
    assert again == trials[done:]  # what was tried before is not tried again
    assert (tmp_path / "out" / TRIALS).read_bytes() == (place / TRIALS).read_bytes()


def test_all_trials_are_a_comparison_that_may_grow(whole: tuple[list[Trial], Path]) -> None:
    trials, place = whole
    assert is_comparison(place)
    plan = Store(place).plan()
    assert [*dict.fromkeys(case.variant for case in plan.cases)] == [trial.variant for trial in trials]
    assert plan.title == "Search over local.lr"
    for each in collect(plan, place).outcomes:
        assert each.state == "finished" or (each.state, each.failure) == ("pruned", BEHIND)
    before = (place / TRIALS).read_bytes()
    assert made(what(3), place) == trials[:3]
    assert (place / TRIALS).read_bytes() == before


def test_a_trial_that_diverges_has_failed(tmp_path: Path) -> None:
    grid = ("local.lr=0.1,1e30",)
    trials = made(what(4, (), grid, ("model=mlp-400", "rounds=1"), seeds=[100]), tmp_path / "out")
    assert {trial.settings["local.lr"]: trial.state for trial in trials} == {0.1: "complete", 1e30: "failed"}
    assert {trial.value for trial in trials if trial.state == "failed"} == {0.0}
    assert min(trial.value for trial in trials if trial.state == "complete") > 0


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    place = tmp_path / "out"
    mine = what(1, seeds=[100], words=("rounds=1",))
    made(mine, place)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    for other, part in (
        (what(1, ("local.lr=0.001..3",), seeds=[100], words=("rounds=1",)), "space"),
        (what(1, seeds=[101], words=("rounds=1",)), "seeds"),
        (what(1, seeds=[100], words=("rounds=2",)), "experiment"),
    ):
        with pytest.raises(InputError, match=f"belongs to another search .with another {part}.; choose another folder"):
            made(other, place)
    with pytest.raises(InputError, match="belongs to another comparison"):
        Store(place).keep(small())
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(InputError, match="holds something else; choose a new or empty folder"):
        made(mine, tmp_path / "full")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (SEARCH, "{"),
        (SEARCH, "[1]"),
        (SEARCH, ""),
        (TRIALS, "{"),
        (TRIALS, "{}\n"),
        (TRIALS, "3\n"),
        (TRIALS, '{"steps": {}}'),
    ],
)
def test_a_damaged_folder_is_told(name: str, text: str, tmp_path: Path) -> None:
    mine = what(1, seeds=[100])
    (tmp_path / SEARCH).write_text(json.dumps(mine.told()))
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=f"{name} is damaged; choose another folder"):
        made(mine, tmp_path)
    assert (tmp_path / name).read_text() == text


def test_a_kill_while_the_folder_is_begun_leaves_one_that_can_be_used(tmp_path: Path) -> None:
    (tmp_path / f"{SEARCH}.partial").write_text("{")
    assert len(made(what(1, seeds=[100], words=("rounds=1",)), tmp_path)) == 1


PAIRS = ("per_round=2,8", "clients=10,4")


def test_settings_that_contradict_each_other_make_a_failed_trial(tmp_path: Path) -> None:
    asked = what(6, (), PAIRS, ("rounds=1",), seeds=[100])
    trials = made(asked, tmp_path)
    bad = [trial for trial in trials if trial.words == ["per_round=8", "clients=4"]]
    assert bad
    assert {(trial.state, trial.value) for trial in bad} == {("failed", 0.0)}
    assert all(trial.why.startswith("per_round must be at most ") and "got 8" in trial.why for trial in bad)
    assert {(trial.state, trial.why) for trial in trials if trial not in bad} == {("complete", "")}
    assert [case.name for case in Store(tmp_path).plan().cases] == [case.name for case in asked.plan(trials).cases]
    assert "per_round=8, clients=4" not in asked.plan(trials).variants


def test_settings_that_a_run_refuses_make_a_failed_trial(tmp_path: Path) -> None:
    asked = what(4, (), ("partition.shards_per_client=2,50",), ("partition=shards", "rounds=1"))
    trials = made(asked, tmp_path)
    assert {(trial.words[0][-2:], trial.state) for trial in trials} == {("=2", "complete"), ("50", "failed")}
    (why,) = {trial.why for trial in trials if trial.state == "failed"}
    assert why.startswith("partition")
    for each in collect(asked.plan(trials), tmp_path).outcomes:
        assert each.failure == (why if "50" in each.variant else None)


def test_a_search_of_which_nothing_can_be_run_is_refused_and_keeps_no_trial(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="partition"):
        made(what(4, words=("partition={kind: shards, shards_per_client: 50}",)), tmp_path)
    assert not (tmp_path / TRIALS).exists()


@pytest.mark.parametrize("code", ["raise RuntimeError('my own mistake')", "return 'nonsense'"])
def test_what_a_users_code_does_makes_a_failed_trial(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"mistaken{len(code)}"
    (tmp_path / f"{name}.py").write_text(f"def draw(sizes, count, free, rng):\n    {code}\n")
    monkeypatch.syspath_prepend(tmp_path)
    trials = made(what(4, (), (f"sampling=uniform,{name}:draw",), ("rounds=1",), seeds=[100]), tmp_path / "out")
    assert {(trial.words[0], trial.state) for trial in trials} == {
        ("sampling=uniform", "complete"),
        (f"sampling={name}:draw", "failed"),
    }
    assert all(f"{name}:draw" in trial.why for trial in trials if trial.state == "failed")


@pytest.mark.parametrize("kind", [DIED, "MishapError"])
def test_what_is_not_the_settings_fault_ends_a_search_that_can_go_on(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = what(2, seeds=[100], words=("rounds=1",))
    with monkeypatch.context() as patch:

        def broken(cases: Sequence[Case], place: Path, **_: Any) -> None:
            Store(place).fail(cases[0].name, kind, "it broke")

        patch.setattr("fedkeel.study.search.execute", broken)
        with pytest.raises(
            MishapError, match=r"^trial0000-seed100 failed: it broke; run the same command to try again$"
        ):
            made(asked, tmp_path)
    assert [trial.state for trial in made(asked, tmp_path)] == ["complete", "complete"]


def test_settings_that_were_tried_before_are_not_run_again(tmp_path: Path) -> None:
    asked = what(6, (), ("local.epochs=1,5",), seeds=[100])
    ran, told = set[str](), list[Trial]()

    def see(event: Event) -> None:
        ran.update({event.name} if isinstance(event, Ended) else set())

    trials = made(asked, tmp_path, see, told.append)
    first = {trial.variant: trial for trial in reversed(trials)}
    assert len(first) == 2
    assert ran == {f"trial{trial.number:04d}-seed100" for trial in first.values()}
    for trial in trials:
        same = first[trial.variant]
        expected = None if trial is same else same.number
        assert (trial.repeats, trial.value, trial.state, trial.steps, trial.why) == (
            expected, same.value, same.state, same.steps, same.why,
        )  # fmt: skip
    assert told == trials
    assert [case.name for case in asked.plan(trials).cases] == sorted(ran)


def test_trials_that_repeat_others_are_remembered_like_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, report = dict[int, dict[int, float]](), optuna.trial.Trial.report

    def reported(self: Any, value: float, step: int) -> None:
        told.setdefault(self.number, {})[step] = value
        report(self, value, step)

    monkeypatch.setattr(optuna.trial.Trial, "report", reported)
    trials = made(what(9, (), ("local.lr=0.1,0.2,0.0001",)), tmp_path / "a")
    assert told == {trial.number: trial.steps for trial in trials}
    for stop in (3, 6, 9):
        again = made(what(stop, (), ("local.lr=0.1,0.2,0.0001",)), tmp_path / "b")
    assert again == trials
    assert (tmp_path / "a" / TRIALS).read_bytes() == (tmp_path / "b" / TRIALS).read_bytes()


def test_a_repeat_does_not_hide_the_trial_that_it_repeats() -> None:
    asked = what(2, seeds=[100])
    plan = asked.plan([*tried("complete", 0.9, 1), *tried("pruned", 0.1, 1, 1)])
    assert [case.name for case in plan.cases] == ["trial0000-seed100"]


def test_a_stop_counts_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, hand = Stop(), Crew._hand

    def handed(self: Crew, free: Any) -> None:
        assert stop.heard
        stop.asked = True
        hand(self, free)

    with monkeypatch.context() as patch:
        patch.setattr(Crew, "_hand", handed)
        with pytest.raises(
            StoppedError, match=r"^stopped; 0 of 2 trials are done, and the same command continues from here$"
        ):
            search(what(2), tmp_path, jobs=2, watch=lambda _: None, tell=lambda _: None, stop=stop)
    assert not stop.heard
    assert not (tmp_path / "runs").exists()
    stop = Stop()
    with pytest.raises(StoppedError, match=r"^stopped; 1 of 2 trials are done"):
        search(what(2), tmp_path, jobs=2, watch=lambda _: None, tell=lambda _: setattr(stop, "asked", True), stop=stop)


def test_a_search_has_its_folder_alone_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    asked, refused = what(2, seeds=[100], words=("rounds=1",)), list[str]()

    def meddle(_: Trial) -> None:
        with pytest.raises(InputError, match="is in use; choose another folder") as error:
            made(asked, tmp_path)
        refused.append(str(error.value))

    made(asked, tmp_path, tell=meddle)
    assert len(refused) == 2
    made(asked, tmp_path)


def test_a_trial_is_in_the_plan_as_soon_as_its_runs_begin(tmp_path: Path) -> None:
    asked, seen = what(2, seeds=[100], words=("rounds=1",)), list[list[str]]()

    def look(event: Event) -> None:
        if isinstance(event, Begun):
            seen.append([each.name for each in gather([tmp_path]).outcomes])

    made(asked, tmp_path, look)
    assert seen == [["trial0000-seed100"], ["trial0000-seed100", "trial0001-seed100"]]


def test_more_runs_than_a_comparison_takes_are_refused_beforehand() -> None:
    with pytest.raises(InputError, match="must have at most 10,000 runs; got 10,002"):
        what(5001)


def record(*places: float) -> RunRecord:
    rows = [row(number, number / 10, virtual_seconds=seconds) for number, seconds in enumerate(places, 1)]
    return RunRecord(Path("run"), {}, rows)


def test_what_a_run_had_reached_is_told_as_runs_are_compared() -> None:
    run, clock = record(3.0, 10.0, 10.0, 97.0), Measure(at="time", until=100.0)
    assert steps(run, Measure(at="rounds"), False) == {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}
    assert steps(run, clock, True) == {1: 0.1, **dict.fromkeys(range(2, 20), 0.3), 20: 0.4}
    assert steps(run, clock, False) == {1: 0.1, **dict.fromkeys(range(2, 20), 0.3)}  # another may come before 100
    assert steps(record(3.0, 10.0), clock, False) == {1: 0.1}  # another may come at 10
    assert steps(record(12.0, 26.0), clock, False) == dict.fromkeys((3, 4, 5), 0.1)
    assert steps(record(), clock, False) == {}
    for other in (Measure(at="time"), Measure(at="uploads"), Measure(at="bytes", until=100.0)):
        assert steps(run, other, True) == {}


CLOCK = ("limit_seconds=20", "rounds=100000", "evaluate_every=1")


def test_trials_are_judged_by_the_clock_where_they_are_compared_by_it(tmp_path: Path) -> None:
    asked = what(2, (), ("algorithm=fedavg,fedasmu",), CLOCK)
    trials = made(asked, tmp_path)
    assert asked.measure == Measure(at="time", until=20.0, tuning=True)
    found = collect(asked.plan(trials), tmp_path)
    for trial in (each for each in trials if each.repeats is None):
        runs = found.of("", trial.variant)
        assert trial.value == pytest.approx(sum(each.value or 0.0 for each in runs) / len(runs))
        assert max(trial.steps) == PLACES


def test_a_trial_that_falls_behind_by_the_clock_does_not_go_on(tmp_path: Path) -> None:
    asked = what(WARM + 1, words=("limit_seconds=10000", "rounds=100000"), at="time")
    before = [Trial(n, {"local.lr": 0.1}, 1.0, "complete", dict.fromkeys(range(1, 21), 1.0)) for n in range(WARM)]
    earlier(asked, tmp_path, *before)
    last = made(asked, tmp_path)[-1]
    assert (last.state, [*last.steps]) == ("pruned", [1])


def test_no_trial_is_stopped_early_where_it_is_not_known_at_what_they_are_compared(tmp_path: Path) -> None:
    asked = what(WARM + 1, at="uploads")
    earlier(asked, tmp_path, *tried("complete", 1.0, WARM))
    last = made(asked, tmp_path)[-1]
    runs = collect(asked.plan([last]), tmp_path).outcomes
    assert (last.state, last.steps) == ("complete", {})
    assert last.value == pytest.approx(sum(each.history[-1]["accuracy"] for each in runs) / 2)


def test_another_scale_makes_another_search(tmp_path: Path) -> None:
    made(what(1, seeds=[100], words=("rounds=1",)), tmp_path)
    with pytest.raises(InputError, match="belongs to another search"):
        made(what(1, seeds=[100], words=("rounds=1",), at="time"), tmp_path)


def test_a_run_of_a_pruned_trial_that_ended_meanwhile_is_not_ranked(tmp_path: Path) -> None:
    last = last_by_hand(tmp_path, tried("complete", 0.9, WARM), False)
    found = collect(what(WARM + 1).plan([last]), tmp_path)
    assert ({each.state for each in found.outcomes}, ranking(found)) == ({"pruned"}, [])


def test_without_optuna_a_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"needs the package optuna; install it with pip install 'fedkeel\[optuna\]'"):
        what(1)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"ranges": ()}, "search: there is nothing to search; give --range KEY=LOW..HIGH or --grid KEY=V,V"),
        ({"grid": ("local.lr=1,2",)}, "search: a setting is given twice; keep one of the two"),
        ({"ranges": ("local.nope=1..2",)}, "local.nope is not a setting"),
        ({"ranges": ("local.lr=0.1..1e39",)}, r"local.lr=1.0e\+39: local.lr"),
        (
            {"grid": ("algorithm=fedavg,fedawg,fedprox",)},
            "'fedawg' is not known; did you mean fedavg",
        ),  # also in the middle of a list
        ({"seeds": []}, r"seeds must be different numbers, at least one; got \[\]"),
        ({"seeds": [1, 1]}, r"seeds must be different numbers, at least one; got \[1, 1\]"),
        ({"given": StudyFile(variants={"a": []})}, "search: the file has variants or scenes; give an experiment"),
        ({"given": StudyFile(scenes={"a": []})}, "search: the file has variants or scenes; give an experiment"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_the_first_run(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        what(1, **given)


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("local.lr=0.001..1", Bounds(0.001, 1)),
        ("local.lr=1e-3..1e-1", Bounds(0.001, 0.1)),
        ("local.epochs=1..5", Bounds(1, 5)),
    ],
)
def test_bounds_are_read(word: str, found: Bounds) -> None:
    assert Bounds.read(word) == (word.partition("=")[0], found)


@pytest.mark.parametrize("word", ["x", "x=", "x=1", "x=1..", "x=..2", "=1..2", "x=a..b", "x=true..false", "x=1..2..3"])
def test_what_names_no_bounds_is_refused(word: str) -> None:
    with pytest.raises(InputError, match=r"range must be KEY=LOW\.\.HIGH, .*; got "):
        Bounds.read(word)


@pytest.mark.parametrize("word", ["x=2..1", "x=1..1", "x=0...inf", "x=.nan..1"])
def test_bounds_have_an_order(word: str) -> None:
    with pytest.raises(InputError, match=r"range must have a lower bound below the upper one; got "):
        Bounds.read(word)


@pytest.mark.parametrize(
    ("word", "kind", "logarithmic"),
    [
        ("local.epochs=1..5", "IntDistribution", False),
        ("local.epochs=1..50", "IntDistribution", True),
        ("dataset.train_limit=10000..50000", "IntDistribution", False),
        ("local.weight_decay=0..1", "FloatDistribution", False),
        ("local.lr=1..50", "FloatDistribution", True),
        ("local.momentum=0.5..0.9", "FloatDistribution", False),
        ("local.lr=0.1..1", "FloatDistribution", True),
    ],
)
def test_numbers_are_whole_where_a_setting_takes_no_others(word: str, kind: str, logarithmic: bool) -> None:
    key, _ = Bounds.read(word)
    found = distribution(what(1, (word,)).space[key])
    assert (type(found).__name__, found.log) == (kind, logarithmic)


def test_trials_are_compared_at_equal_time_if_one_is_asynchronous() -> None:
    asked = what(2, (), ("algorithm=fedavg,fedbuff",))
    trials = [Trial(n, {"algorithm": name}, 0.5, "complete") for n, name in enumerate(("fedavg", "fedbuff"))]
    assert asked.plan(trials).measure.at == "time"
    assert asked.plan(trials[:1]).measure.at == "time"  # the same from the first trial on
    assert what(2, (), ("algorithm=fedavg,fedprox",)).measure.at == "rounds"
    clocked = what(2, (), ("algorithm=fedavg,fedbuff",), ("limit_seconds=30",))
    assert (
        clocked.measure
        == sweep_plan(
            StudyFile(), on_top("limit_seconds=30"), ["algorithm=fedavg,fedbuff"], [100, 101], None, ""
        ).measure
    )
    assert (clocked.measure.until, what(1, words=("limit_seconds=30",), at="time").measure.until) == (30.0, 30.0)
    assert [each.prunes for each in (what(1), clocked, asked, what(1, at="bytes"))] == [True, True, False, False]


def test_settings_of_the_command_are_kept_whatever_is_searched() -> None:
    words = ("local.epochs=7", "algorithm.server_lr=0.5", "partition=shards")
    grid = ("algorithm=fedavg,fedprox", "local={lr: 0.1},{lr: 0.2}", "partition.shards_per_client=1,2")
    asked = what(1, (), grid, asked=words)
    trial = Trial(0, {"algorithm": "fedprox", "local": {"lr": 0.2}, "partition.shards_per_client": 1}, 0.0, "")
    told = asked.cases(trial)[0].experiment
    assert (told.local.epochs, told.local.lr) == (7, 0.2)
    assert told.algorithm.model_dump()["server_lr"] == 0.5
    assert told.partition.model_dump()["shards_per_client"] == 1
    with pytest.raises(InputError, match=r"local.lr is also set by the variant local.lr=0.1"):
        what(1, (), ("local.lr=0.1,0.2",), asked=("local.lr=0.3",))
