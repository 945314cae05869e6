"""A search with Optuna: the same every time, also after an interruption."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from fedkeel.errors import InputError, StoppedError
from fedkeel.runner.stopping import Stop
from fedkeel.study.files import StudyFile
from fedkeel.study.results import collect
from fedkeel.study.search import SEARCH, TRIALS, WARM, search
from fedkeel.study.space import Bounds, Search, Trial
from fedkeel.study.store import Store, is_comparison
from fedkeel.study.table import lines
from fedkeel.study.tasks import Moved
from tests.helpers.studies import Event, on_top, row, small, write_run

pytestmark = pytest.mark.extras
pytest.importorskip("optuna")

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
    given = more.pop("given", StudyFile())
    return Search.of(given, on_top(*words), grid, ranges, more.pop("seeds", [100, 101]), trials, **more)


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
        assert trial.accuracy == trial.steps[rounds[-1]]
        seen.append(trial)
    assert {trial.state for trial in trials} == {"complete", "pruned"}
    for trial in trials:
        runs = collect(what(TRIED).plan([trial]), place).outcomes
        mean = sum(each.history[max(trial.steps) - 1]["accuracy"] for each in runs) / len(runs)
        assert trial.accuracy == pytest.approx(mean)
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
    (place / TRIALS).write_text("".join(json.dumps(vars(trial)) + "\n" for trial in trials))


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
    assert (found.state, found.accuracy, found.steps) == ("failed", 0.0, {1: 0.4})
    # Whether one that is behind still diverges before it is stopped depends on the machine.
    assert last_by_hand(tmp_path / "b", tried("complete", 0.9, WARM), True).state == "pruned"


def test_a_search_goes_on_after_an_interruption_as_if_there_had_been_none(
    whole: tuple[list[Trial], Path], tmp_path: Path
) -> None:
    trials, place = whole
    told, stop = list[Trial](), Stop()

    def halt(event: Event) -> None:  # in the middle of the seventh trial
        stop.asked = len(told) == 6 and isinstance(event, Moved)

    with pytest.raises(StoppedError):
        search(what(TRIED), tmp_path / "out", jobs=2, watch=halt, tell=told.append, stop=stop)
    assert told == trials[:6]
    again = list[Trial]()
    assert made(what(TRIED), tmp_path / "out", tell=again.append) == trials
    assert again == trials[6:]  # what was tried before is not tried again
    assert (tmp_path / "out" / TRIALS).read_bytes() == (place / TRIALS).read_bytes()


def test_all_trials_are_a_comparison_that_may_grow(whole: tuple[list[Trial], Path]) -> None:
    trials, place = whole
    assert is_comparison(place)
    plan = Store(place).plan()
    assert plan.variants == [trial.variant for trial in trials]
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
    assert {trial.accuracy for trial in trials if trial.state == "failed"} == {0.0}
    assert min(trial.accuracy for trial in trials if trial.state == "complete") > 0


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
        with pytest.raises(
            InputError, match=f"belongs to another search .with another {part}.; accepted: another fold"
        ):
            made(other, place)
    with pytest.raises(InputError, match="belongs to another comparison"):
        Store(place).keep(small())
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(InputError, match="holds something else; accepted: a new or empty folder"):
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
    with pytest.raises(InputError, match=f"{name} is damaged; accepted: another folder"):
        made(mine, tmp_path)
    assert (tmp_path / name).read_text() == text


def test_a_kill_while_the_folder_is_begun_leaves_one_that_can_be_used(tmp_path: Path) -> None:
    (tmp_path / f"{SEARCH}.partial").write_text("{")
    assert len(made(what(1, seeds=[100], words=("rounds=1",)), tmp_path)) == 1


def test_without_optuna_a_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"needs the package optuna; install it with pip install 'fedkeel\[optuna\]'"):
        what(1)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"ranges": ()}, "search: there is nothing to search; accepted: --range KEY=LOW..HIGH or --grid KEY=V,V"),
        ({"grid": ("local.lr=1,2",)}, "search: a setting is given twice; accepted: each once"),
        ({"ranges": ("local.nope=1..2",)}, "'nope' is not a setting"),
        ({"ranges": ("local.lr=0.1..1e39",)}, r"local.lr=1.0e\+39: local.lr"),
        ({"grid": ("algorithm=fedavg,fedawg,fedprox",)}, "'fedawg' is unknown"),  # also in the middle of a list
        ({"seeds": []}, "seeds: .* is not accepted; accepted: different numbers, at least one"),
        ({"seeds": [1, 1]}, "seeds: .* is not accepted; accepted: different numbers, at least one"),
        ({"given": StudyFile(variants={"a": []})}, "search: the file has variants or scenes; accepted: an experiment"),
        ({"given": StudyFile(scenes={"a": []})}, "search: the file has variants or scenes; accepted: an experiment"),
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
    with pytest.raises(InputError, match=r"range: .* is not accepted; accepted: KEY=LOW\.\.HIGH"):
        Bounds.read(word)


@pytest.mark.parametrize("word", ["x=2..1", "x=1..1", "x=0...inf", "x=.nan..1"])
def test_bounds_have_an_order(word: str) -> None:
    with pytest.raises(InputError, match=r"range: .* is not accepted; accepted: a lower bound below the upper one"):
        Bounds.read(word)


def test_numbers_are_whole_or_logarithmic_as_their_bounds_say() -> None:
    kinds = {
        "x=1..5": ("IntDistribution", False),
        "x=1..50": ("IntDistribution", True),
        "x=0.5..1": ("FloatDistribution", False),
        "x=0.0..9.0": ("FloatDistribution", False),
        "x=0.1..1": ("FloatDistribution", True),
    }
    for word, (kind, logarithmic) in kinds.items():
        found = Bounds.read(word)[1].distribution()
        assert (type(found).__name__, found.log) == (kind, logarithmic), word


def test_trials_are_compared_at_equal_time_if_one_is_asynchronous() -> None:
    asked = what(2, (), ("algorithm=fedavg,fedbuff",))
    trials = [Trial(n, {"algorithm": name}, 0.5, "complete") for n, name in enumerate(("fedavg", "fedbuff"))]
    assert asked.plan(trials).measure.at == "time"
    assert asked.plan(trials[:1]).measure.at == "rounds"
