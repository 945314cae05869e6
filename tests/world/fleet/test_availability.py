"""When devices are on: how much of the time, the ends of it to the last bit, and moments that agree with each other."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]

from fedkeel.world.fleet.profile import Fleet
from fedkeel.world.fleet.settings import FleetSettings

shares = st.floats(1e-6, 1, exclude_max=True)
periods = st.floats(1e-3, 1e12)


def fleet(share: float, period: float = 3600.0, clients: int = 5, seed: int = 0) -> Fleet:
    settings = FleetSettings(availability=share, availability_period=period)
    return Fleet.of(settings, np.ones(clients, dtype=np.int64), 1, seed)


def on(devices: Fleet, time: float) -> list[bool]:
    found = devices.available(time)
    assert found is not None
    return list(found.tolist())


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """On in [2, 5) of every 10 s; in [8, 12) of 10 s; always."""
    path = tmp_path_factory.mktemp("trace") / "hours.csv"
    Path(path).write_text("availability,availability_period,availability_phase\n0.3,10,2\n0.4,10,28\n1,7,3\n")
    return Fleet.of(FleetSettings(profile=str(path)), np.ones(3, dtype=np.int64), 1, 0)


def test_intervals_are_half_open(by_hand: Fleet) -> None:
    expected = {0: "-ba", 1.75: "-ba", 2: "a-a", 4.75: "a-a", 5: "--a", 8: "-ba", 11.75: "-ba", 12: "a-a", 15: "--a"}
    for time, who in expected.items():
        assert on(by_hand, float(time)) == [letter != "-" for letter in who], time
        assert on(by_hand, time + 1e4) == on(by_hand, float(time)), time


def test_when_they_go_off_and_come_back(by_hand: Fleet) -> None:
    everybody = np.arange(3)
    assert by_hand.off_at(everybody[:1], 2.0).tolist() == [5]
    assert by_hand.off_at(everybody[1:], 0.5).tolist() == [2, np.inf]
    assert by_hand.off_at(everybody[1:2], 9.0).tolist() == [12]
    assert by_hand.next_on(6.0) == 6
    first, second = everybody[:1], everybody[1:2]
    assert [by_hand.next_on(time, first) for time in (0.0, 2.0, 4.5, 5.0, 11.5)] == [2, 2, 4.5, 12, 12]
    assert [by_hand.next_on(time, second) for time in (0.0, 2.0, 7.5, 12.0)] == [0, 8, 8, 18]
    assert by_hand.next_on(5.0, everybody[:2]) == 8


@pytest.mark.parametrize(("period", "phase", "number"), [(7.3, 5.27, 135), (7.3, 2.26, 525), (0.7, 0.09, 29)])
def test_beginnings_are_exact_where_a_quotient_is_rounded(
    period: float, phase: float, number: int, tmp_path: Path
) -> None:
    path = tmp_path / "hours.csv"
    path.write_text(f"availability,availability_period,availability_phase\n0.25,{period},{phase}\n")
    devices = Fleet.of(FleetSettings(profile=str(path)), np.ones(1, dtype=np.int64), 1, 0)
    begins = phase + number * period
    assert on(devices, begins) == [True]
    assert on(devices, float(np.nextafter(begins, 0))) == [False]
    assert devices.next_on(float(np.nextafter(begins, 0))) == begins


def test_time_never_runs_backwards_even_where_a_period_is_below_its_resolution() -> None:
    devices = fleet(1e-5, period=0.001)
    for time in np.geomspace(1e13, 1e18, 500):
        assert devices.next_on(float(time)) >= time


def test_by_default_everybody_always_is() -> None:
    always = fleet(1.0)
    assert always.available(1e9) is None
    assert always.off_at(np.arange(5), 3.0).tolist() == [np.inf] * 5
    assert always.next_on(3.5) == 3.5


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.5, 0.97])
def test_each_is_on_for_its_share_of_the_time(share: float) -> None:
    devices = fleet(share, period=40)
    hours = np.mean([on(devices, time) for time in np.arange(0, 2000, 0.25)], axis=0)
    assert hours == pytest.approx([share] * 5, abs=0.25 / 40)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.97])
def test_at_any_moment_a_share_of_the_fleet_is_on(share: float) -> None:
    devices = fleet(share, clients=3000)
    for time in (0.0, 1234.5, 1e7):
        assert stats.binomtest(sum(on(devices, time)), 3000, share).pvalue > 1e-3


def test_phases_repeat_differ_by_seed_and_do_not_depend_on_the_number_of_devices() -> None:
    few, many, others = fleet(0.5), fleet(0.5, clients=50), fleet(0.5, seed=1)
    assert few.phase.tolist() == many.phase[:5].tolist()
    assert few.phase.tolist() != others.phase.tolist()
    assert stats.kstest(fleet(0.5, clients=2000).phase / 3600, "uniform").pvalue > 1e-3


@given(shares, periods, st.floats(0, 1e12), st.integers(0, 20))
def test_somebody_is_on_at_the_next_moment_and_nobody_before(
    share: float, period: float, time: float, seed: int
) -> None:
    devices = fleet(share, period, clients=3, seed=seed)
    moment = devices.next_on(time)
    assert moment >= time
    assert any(on(devices, moment))
    if moment > time:
        between = np.linspace(time, np.nextafter(moment, 0), 7)
        assert not any(any(on(devices, float(t))) for t in between)


@given(st.floats(1e-6, 1 - 1e-6), periods, st.floats(0, 1e6), st.integers(0, 20))
def test_a_device_is_on_until_it_goes_off(share: float, period: float, periods_gone: float, seed: int) -> None:
    devices = fleet(share, period, clients=3, seed=seed)
    time = devices.next_on(periods_gone * period)
    (device, *_) = np.flatnonzero(on(devices, time))
    (off,) = devices.off_at(np.array([device]), time)
    assert time < off <= time + share * period * (1 + 1e-6) + 1e-9 * off
    for t in np.linspace(time, np.nextafter(off, 0), 5):
        assert on(devices, float(t))[device]
    assert not on(devices, float(off))[device]
    back = devices.next_on(float(off), np.array([device]))
    assert on(devices, back)[device]
    assert back - off == pytest.approx((1 - share) * period, rel=1e-3, abs=1e-9 * off)
