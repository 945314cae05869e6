"""The picture of the devices and the table that goes with it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from fedkeel import InputError
from fedkeel.report import fleet as report
from fedkeel.report.fleet import JobCosts, fleet_profile, windows
from fedkeel.world.fleet.profile import Fleet
from fedkeel.world.fleet.settings import FleetSettings
from tests.helpers.commands import fedkeel

SIZES = np.array([100, 0, 300, 200])
QUICK = ["model=linear", "clients=10", "dataset.train_limit=500", "dataset.test_limit=100"]
TRACE = "uplink_mbps,downlink_mbps,availability\n" + "".join(f"{1 + n},{5 + n},{0.2 + 0.07 * n}\n" for n in range(10))


def fleet(sizes: Any = SIZES, **settings: Any) -> Fleet:
    return Fleet.of(FleetSettings(**settings), sizes, 5, 0)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures instead of files."""
    figures: list[Figure] = []
    monkeypatch.setattr(report, "save", lambda figure, *_, **__: figures.append(figure))
    return figures


def test_costs_by_hand() -> None:
    devices = fleet(uplink_mbps=2, downlink_mbps=4, latency_seconds=1)
    costs = JobCosts.of(devices, SIZES, 5, 1_000_000)
    assert costs.training.tolist() == [5, 15, 10]
    assert costs.exchange.tolist() == [7, 7, 7]
    assert costs.job.tolist() == [12, 22, 17]


def test_jobs_stand_in_order_and_the_exchange_on_top(drawn: list[Figure]) -> None:
    devices = fleet(uplink_mbps=2, downlink_mbps=4, latency_seconds=1)
    fleet_profile(devices, JobCosts.of(devices, SIZES, 5, 1_000_000), Path("a.png"), "a title")
    jobs, histogram = drawn[0].axes
    training, exchange = jobs.patches
    assert training.get_data().values.tolist() == [5, 10, 15]
    assert exchange.get_data().values.tolist() == [12, 17, 22]
    assert exchange.get_data().baseline.tolist() == [5, 10, 15]
    assert sum(bar.get_height() for bar in histogram.patches) == 3
    assert [line.get_label() for line in histogram.lines] == ["median 17 s", "mean 17 s"]


@pytest.mark.slow
def test_links_and_hours_are_drawn_where_they_differ(drawn: list[Figure], tmp_path: Path) -> None:
    (tmp_path / "links.csv").write_text("uplink_mbps,downlink_mbps\n1,2\n2,4\n3,60\n4,8\n")
    (tmp_path / "up.csv").write_text("uplink_mbps\n1\n2\n3\n4\n")
    labels = []
    for settings in (
        {"profile": str(tmp_path / "links.csv")},
        {"profile": str(tmp_path / "up.csv"), "availability": 0.5},
        {"uplink_mbps": 5},
        {"availability": 0.5, "availability_period": 20},
    ):
        devices = fleet(**settings)
        fleet_profile(devices, JobCosts.of(devices, SIZES, 5, 1000), Path("a.png"), "")
        labels.append([(axes.get_xlabel(), axes.get_ylabel()) for axes in drawn[-1].axes[2:]])
    assert labels == [
        [("downlink, Mbit/s", "uplink, Mbit/s")],
        [("device, from fastest link to slowest", "uplink, Mbit/s"), ("time, h", "device")],
        [],
        [("time, s", "device")],
    ]
    points = drawn[0].axes[2].collections[0].get_offsets()
    assert points.tolist() == [[2, 1], [4, 2], [60, 3], [8, 4]]
    assert (drawn[0].axes[2].get_xscale(), drawn[0].axes[2].get_yscale()) == ("log", "linear")


@pytest.mark.slow
def test_lanes_are_the_hours_of_the_first_fifty(drawn: list[Figure]) -> None:
    sizes = np.ones(60, dtype=np.int64)
    devices = fleet(sizes, availability=0.5, availability_period=20)
    fleet_profile(devices, JobCosts.of(devices, sizes, 5, 1000), Path("a.png"), "")
    lanes = drawn[0].axes[2]
    assert "the first 50 of 60" in lanes.get_ylabel()
    assert len(lanes.collections) == 50
    for device, lane in enumerate(lanes.collections[:5]):
        bars = [(path.get_extents().x0, path.get_extents().x1) for path in lane.get_paths()]
        np.testing.assert_allclose(bars, windows(devices, device, 40.0))


def test_windows_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "hours.csv"
    path.write_text("availability,availability_period,availability_phase\n0.3,10,2\n0.4,10,8\n1,7,3\n0.5,0.001,0\n")
    devices = fleet(profile=str(path))
    assert windows(devices, 0, 20.0) == [(2, 5), (12, 15)]
    assert windows(devices, 1, 20.0) == [(0, 2), (8, 12), (18, 20)]
    assert windows(devices, 2, 20.0) == [(0, 20)]
    assert len(windows(devices, 3, 20.0)) == 200


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"speed_ratio": 5, "availability": 0.5, "profile": "lognormal"}])
@pytest.mark.parametrize("clients", [1, 2, 500])
def test_fleets_of_any_size_can_be_drawn(settings: dict[str, Any], clients: int, tmp_path: Path) -> None:
    sizes = np.full(clients, 7)
    devices = fleet(sizes, **settings)
    fleet_profile(devices, JobCosts.of(devices, sizes, 5, 1000), tmp_path / "a" / "fleet.png", "$1 devices")
    height, width, _ = imread(tmp_path / "a" / "fleet.png").shape
    assert 1200 <= width <= 2200
    assert 500 <= height <= 1200


def test_other_formats_are_refused() -> None:
    with pytest.raises(InputError, match=r"out must be a file name that ends in .*\.png.*; got a.gif"):
        fleet_profile(fleet(), JobCosts.of(fleet(), SIZES, 5, 1000), Path("a.gif"), "")


def rows(printed: str) -> dict[str, list[str]]:
    """Of the table: its last four words, by what stands before them."""
    lines = [line.split() for line in printed.splitlines()]
    return {" ".join(words[:-4]): words[-4:] for words in lines if len(words) > 4}


@pytest.mark.slow
def test_the_command_prints_a_table_and_draws(tmp_path: Path) -> None:
    done = fedkeel("fleet", "show", *QUICK, "fleet.speed_ratio=4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "10 devices" in done.stdout
    table = rows(done.stdout)
    assert table["milliseconds per sample"] == ["200", "500", "500", "800"]  # 50 samples in 10 s
    assert table["seconds of training per job"] == ["10", "25", "25", "40"]
    assert "the slowest device takes 4 times as long as the fastest for equal work, and 4 times" in done.stdout
    assert "uploads and downloads take no time" in done.stdout
    assert "figure  fleet-uniform.png" in done.stdout
    assert (tmp_path / "fleet-uniform.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_command_shows_fixed_jobs_without_a_time_for_samples(tmp_path: Path) -> None:
    dealt = ["partition=dirichlet", "partition.alpha=0.3", "fleet.speed_ratio=4", "fleet.job=fixed"]
    done = fedkeel("fleet", "show", *QUICK, *dealt, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    table = rows(done.stdout)
    assert "milliseconds per sample" not in table
    assert table["seconds of training per job"] == ["10", "25", "25", "40"]
    assert "4 times as long as the fastest for equal shares of a job, and 4 times" in done.stdout


@pytest.mark.slow
def test_the_command_shows_a_trace_and_what_a_model_costs(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(TRACE)
    (tmp_path / "e.yaml").write_text("fleet: {profile: trace.csv, dropout: 0.1, latency_seconds: 2}\n")
    done = fedkeel("fleet", "show", "e.yaml", *QUICK, "--out", "pictures", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    table = rows(done.stdout)
    assert table["uplink, Mbit/s"] == ["1", "5.5", "5.5", "10"]
    assert table["downlink, Mbit/s"] == ["5", "9.5", "9.5", "14"]
    assert table["share of time available"] == ["0.2", "0.515", "0.515", "0.83"]
    assert table["probability of losing a job"] == ["0.1"] * 4
    assert table["latency, s"] == ["2"] * 4
    # 7,850 weights of 4 bytes: 0.2512 Mbit.
    slowest, fastest = 2 + 0.2512 * (1 / 1 + 1 / 5), 2 + 0.2512 * (1 / 10 + 1 / 14)
    exchange = table["seconds to exchange 0.0314 MB"]
    assert [float(exchange[place]) for place in (0, 3)] == pytest.approx([fastest, slowest], rel=1e-3)
    assert float(table["seconds per job"][3]) == pytest.approx(10 + slowest, rel=1e-3)
    assert "take no time" not in done.stdout
    assert (tmp_path / "pictures" / "fleet-trace.png").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fleet.profile=absent.csv"], ["fleet.profile: absent.csv cannot be read"]),
        (["--out", "a.gif"], ["out must be a file name", "a.gif"]),
        (["fleet.profile=no_such:function"], ["fleet.profile", "cannot be imported"]),
    ],
)
def test_the_commands_errors(arguments: list[str], words: list[str], tmp_path: Path) -> None:
    done = fedkeel("fleet", "show", *QUICK, *arguments, cwd=tmp_path)
    assert done.returncode == 2
    for word in words:
        assert word in done.stderr
