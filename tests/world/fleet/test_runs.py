"""The fleet in whole runs: the clock by hand, jobs lost where the streams say so, and the example of the page."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkeel import RoundEnd, streams
from tests.helpers import federation
from tests.helpers.federation import SEED, SIZES, N
from tests.helpers.repository import ROOT

BITS = 8 * 8 * federation.FEATURES * federation.CLASSES  # of the model, in float64
FACTORS, UP, DOWN, LATENCY = [1, 2, 4, 3, 2, 5], [1, 2, 3, 4, 5, 6], [9, 8, 7, 6, 5, 4], [0, 0.5, 0, 1, 0, 2]


def columns(end: RoundEnd, *names: str) -> list[Any]:
    return [end.arrivals.columns[name] for name in names]


def test_the_clock_by_hand(tmp_path: Path) -> None:
    rows = zip(FACTORS, (u / 1e4 for u in UP), (d / 1e4 for d in DOWN), LATENCY, strict=True)
    lines = ["speed_factor,uplink_mbps,downlink_mbps,latency_seconds", *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "trace.csv").write_text("\n".join(lines))
    fleet = {"profile": str(tmp_path / "trace.csv"), "fastest_job_seconds": 3, "bandwidth_divisor": 10}
    _, ends = federation.train("fedavg", per_round=N, rounds=2, fleet=fleet)
    start = 0.0
    for end in ends:
        clients, *times = columns(end, "client", "dispatched", "began", "finished", "arrived")
        assert sorted(clients) == list(range(N))
        for client, dispatched, began, finished, arrived in zip(clients, *times, strict=True):
            assert dispatched == pytest.approx(start)
            assert began - dispatched == pytest.approx(LATENCY[client] + BITS / (10 * DOWN[client]))
            assert finished - began == pytest.approx(FACTORS[client] * 3 * SIZES[client] / np.mean(SIZES))
            assert arrived - finished == pytest.approx(BITS / (10 * UP[client]))
        start = max(times[-1])
        assert end.virtual_seconds == pytest.approx(start)


def test_fixed_jobs_take_the_time_of_their_epochs_whatever_a_device_holds(tmp_path: Path) -> None:
    """FedSA asks for one epoch at first; FedEnt for a mini-batch before the jobs, until all have answered."""
    (tmp_path / "trace.csv").write_text("\n".join(["speed_factor", *map(str, FACTORS)]))
    fleet = {"profile": str(tmp_path / "trace.csv"), "fastest_job_seconds": 3, "job": "fixed"}
    seen = set()
    for end in federation.train({"name": "fedsa", "stage1": 0.5}, fleet=fleet)[1]:
        for client, epochs, began, finished in zip(*columns(end, "client", "epochs", "began", "finished"), strict=True):
            assert finished - began == pytest.approx(FACTORS[client] * 3 * epochs / federation.EPOCHS)
            seen.add(epochs)
    assert seen == {1, 2}
    surveyed = [FACTORS[client] * 3 * min(federation.BATCH, SIZES[client]) / (2 * SIZES[client]) for client in range(N)]
    for end in federation.train("fedent", per_round=N, rounds=2, fleet=fleet)[1]:
        for client, dispatched, began, finished in zip(
            *columns(end, "client", "dispatched", "began", "finished"), strict=True
        ):
            assert began - dispatched == pytest.approx(max(surveyed))
            assert finished - began == pytest.approx(FACTORS[client] * 3)


@pytest.mark.slow
def test_jobs_are_lost_where_the_streams_say_so() -> None:
    _, ends = federation.train("fedavg", per_round=N, rounds=5, fleet={"dropout": 0.4})
    lost_in_all = 0
    start = 0.0
    for end in ends:
        drawn = streams.bits(streams.keys(SEED, "lost jobs", end.round, np.arange(N)), 2) / 2**64
        lost = {client: float(drawn[client, 1]) for client in range(N) if drawn[client, 0] < 0.4}
        assert sorted(end.arrivals.columns["client"]) == [client for client in range(N) if client not in lost]
        assert sorted(row.client for row in end.unfinished) == sorted(lost)
        for row in end.unfinished:
            seconds = lost[row.client] * 10 * SIZES[row.client] / np.mean(SIZES)
            assert row.ended - start == pytest.approx(seconds)
            assert row.why == "dropped out"
        lost_in_all += len(lost)
        start = end.virtual_seconds
    assert 0 < lost_in_all < 5 * N


def test_only_devices_that_are_on_get_jobs_and_those_that_go_off_lose_them(tmp_path: Path) -> None:
    """In every 100 s, devices 0 to 2 are on for the first 50; 3 to 5 for the last 50 but one, in which none is."""
    hours = "availability,availability_period,availability_phase\n" + "0.5,100,0\n" * 3 + "0.49,100,50\n" * 3
    (tmp_path / "hours.csv").write_text(hours)
    fleet = {"profile": str(tmp_path / "hours.csv"), "fastest_job_seconds": 20}
    _, ends = federation.train("fedavg", per_round=3, rounds=8, fleet=fleet)
    assert {row.why for end in ends for row in end.unfinished} == {"went offline"}
    for end in ends:
        for row in end.unfinished:
            assert row.ended % 50 == pytest.approx(0 if row.client < 3 else 49)
        for client, dispatched, arrived in zip(*columns(end, "client", "dispatched", "arrived"), strict=True):
            assert dispatched % 100 < 50 if client < 3 else 50 <= dispatched % 100 < 99
            assert dispatched // 50 == arrived // 50
            assert arrived - dispatched == pytest.approx(20 * SIZES[client] / np.mean(SIZES))
    assert any(end.unfinished for end in ends)
    assert any(len(end.arrivals) for end in ends)
    assert ends[-1].virtual_seconds > 100


@pytest.mark.slow
def test_the_pages_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "fleet.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    exec(example, {})
    sys.modules.pop("phones", None)
    assert re.search(r"\d+ virtual seconds", capsys.readouterr().out)


def test_the_page_names_every_setting_and_column() -> None:
    from fedkeel.world.fleet.settings import FleetSettings
    from fedkeel.world.fleet.traces import COLUMNS

    page = (ROOT / "docs" / "fleet.md").read_text()
    for name in [*FleetSettings.model_fields, *COLUMNS]:
        assert f"`{name}`" in page
