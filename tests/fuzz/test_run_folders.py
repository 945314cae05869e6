"""Run folders as kills, full disks and curious people leave them."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from fedkeel import InputError
from fedkeel.record.runs import RunRecord
from fedkeel.report import curves, rates, save, staleness, timeline
from tests.helpers import promise
from tests.helpers.damage import damaged
from tests.helpers.report_folders import HISTORY, WHOLE, write

EXPERIMENT = b"{name: null, algorithm: {name: fedasmu}, partition: {kind: iid}, seed: 0}\n"
rows = st.dictionaries(
    st.sampled_from(["round", "client", "dispatched", "arrived", "ended", "staleness", "weight", "learning_rates",
                     "accuracy", "loss", "why", "accepted", "began", "asked", "merged"]),
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3),
              st.lists(st.floats(), max_size=3), st.sampled_from([10**400, 1e308, -1, 0, 1])),
    max_size=6,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(autouse=True)
def _unsaved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing the picture takes longest, and has a test of its own."""
    for module in (curves, rates, staleness, timeline):
        monkeypatch.setattr(module, "save", lambda *_, **__: None)


def draw(folder: Path) -> list[str]:
    """Every figure of a run; what is said where one is refused."""
    refusals = []
    out = [folder / "x.png"]
    for figure in (
        lambda run: curves.learning_curves([run], out),
        lambda run: rates.learning_rates([run], out),
        lambda run: staleness.staleness_histograms([run], out),
        lambda run: staleness.weight_histograms([run], out),
        lambda run: timeline.timeline(run, out),
    ):
        try:
            figure(RunRecord.read(folder))
        except InputError as error:
            promise.check_message(str(error), ["run folder", "--first", "out"], [])
            refusals.append(str(error))
    return refusals


def test_a_whole_one(tmp_path: Path) -> None:
    write(tmp_path)
    assert draw(tmp_path) == []


@pytest.mark.slow
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_damaged_files(folder: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(WHOLE)))
    write(folder, **{name.partition(".")[0]: data.draw(damaged(WHOLE[name]))})
    draw(folder)


@pytest.mark.slow
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(["history", "clients", "unfinished"]), rows=st.lists(rows, max_size=4))
def test_odd_rows(folder: Path, name: str, rows: list[dict[str, object]]) -> None:
    write(folder, **{name: b"".join(json.dumps(row).encode() + b"\n" for row in rows)})
    draw(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["history", "clients", "unfinished"])
def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path, name: str) -> None:
    whole = WHOLE[f"{name}.jsonl"]
    for cut in range(1, len(whole.splitlines()[0])):
        write(tmp_path, **{name: whole + whole[:cut]})
        run = RunRecord.read(tmp_path)
        assert len(run.history) == 3
        assert len(list(run.arrivals())) == 3
        assert len(list(run.unfinished())) == 1
    write(tmp_path, **{name: whole + b"\0" * 100})
    assert draw(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"history": b""}, "no evaluation yet"),
        ({"history": b'{"round": 1'}, "no evaluation yet"),
        ({"history": b'{"round": 1\n'}, "history.jsonl is damaged (line 1: it is no row)"),
        ({"history": HISTORY + b"\n" + HISTORY}, "history.jsonl is damaged (line 4: it is no row)"),
        ({"history": b"[]\n"}, "line 1: it is no row"),
        ({"history": b"[" * 100_000 + b"\n"}, "line 1: it is no row"),
        ({"history": b"9" * 5000 + b"\n"}, "line 1: it is no row"),
        ({"history": b'{"round": 1, "accuracy": "x"}\n'}, "line 1, accuracy: 'x' is no number"),
        ({"history": b'{"round": 1, "loss": 1' + b"0" * 400 + b"}\n"}, "line 1, loss"),
        ({"history": b'{"round": true, "accuracy": 1, "loss": 1}\n'}, "round: True is no number"),
        ({"clients": b'{"client": "x"}\n'}, "clients.jsonl is damaged (line 1: client: 'x' is no number of a run)"),
        ({"clients": b'{"client": 1.5}\n'}, "client: 1.5 is no number"),
        ({"clients": b'{"client": 1, "staleness": -1}\n'}, "staleness: -1 is no number of a run"),
        ({"clients": b'{"client": 1, "arrived": -1e-9}\n'}, "arrived: -1e-09 is no number of a run"),
        ({"clients": b'{"client": 1, "round": 1}\n'}, "clients.jsonl is damaged (KeyError: 'learning_rates')"),
        ({"clients": b'{"client": 1, "round": 1, "learning_rates": ["x"]}\n'}, "clients.jsonl is damaged (ValueError"),
        ({"clients": b'{"client": 1, "round": 1, "learning_rates": 3}\n'}, "clients.jsonl is damaged (TypeError"),
        ({"clients": b""}, "no update has arrived yet"),
        ({"experiment": b"just words"}, "must be a mapping such as 'clients: 100'; got text"),
        ({"experiment": b"&a [*a]"}, "an alias contains itself"),
        ({"experiment": b"name:\n"}, "experiment.yaml is damaged (KeyError: 'algorithm')"),
        ({"experiment": b"algorithm: 3\n"}, "experiment.yaml is damaged (TypeError"),
    ],
)
def test_damage_is_told_with_its_place(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    write(tmp_path, **files)
    assert any(said in each for each in draw(tmp_path)), draw(tmp_path)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OverflowError("too\nlarge"), "x.png cannot be drawn (too large)"),
        (ValueError("no axis"), "x.png cannot be drawn (no axis)"),
        (OSError(28, "No space left on device"), "x.png cannot be written (No space left on device)"),
    ],
)
def test_figures_that_cannot_be_saved(tmp_path: Path, error: Exception, said: str) -> None:
    class Drawn(Figure):
        def savefig(self, *_: object, **__: object) -> None:
            raise error

    with pytest.raises(InputError) as caught:
        save.save(Drawn(), tmp_path / "x.png", dpi=50)
    assert said in str(caught.value)


def test_places_where_no_figure_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder.png").mkdir()
    for name in ("file/x.png", "folder.png", "x" * 300 + ".png", "a\0b.png"):
        with pytest.raises(InputError, match="out: "):
            save.save(Figure(), tmp_path / name, dpi=50)
