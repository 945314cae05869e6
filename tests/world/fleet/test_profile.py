"""Seconds of training and of links, and jobs that are lost, worked out by hand."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

from fedkeel import streams
from fedkeel.world.fleet.profile import Fleet
from fedkeel.world.fleet.settings import FleetSettings

SIZES = np.array([100, 0, 300, 200])  # of the devices with data, 200 on average
ALL = np.arange(4)
MANY = np.arange(2000)


def fleet(sizes: NDArray[np.int64] = SIZES, epochs: int = 5, seed: int = 0, **settings: Any) -> Fleet:
    return Fleet.of(FleetSettings(**settings), sizes, epochs, seed)


@pytest.mark.slow
def test_a_job_of_average_size_takes_ten_seconds_by_default() -> None:
    assert fleet().train_seconds(ALL, SIZES * 5).tolist() == [5, 0, 15, 10]
    assert fleet().train_seconds(ALL[3:], SIZES[3:] * 2) == pytest.approx([4])
    for size in range(1, 3000, 7):
        assert fleet(np.array([size]), 3).train_seconds(ALL[:1], np.array([3 * size])).tolist() == [10]


@pytest.mark.parametrize("kind", ["uniform", "lognormal", "tiers"])
def test_the_fastest_job_and_the_slowest_are_exact(kind: str) -> None:
    sizes = np.full(100, 600)
    seconds = fleet(sizes, profile=kind, speed_ratio=5).train_seconds(np.arange(100), sizes * 5)
    assert (seconds.min(), seconds.max()) == (10, 50)


def test_seconds_grow_with_samples_and_epochs_and_belong_to_the_device() -> None:
    devices = fleet(np.full(4, 50), epochs=2, speed_ratio=7, fastest_job_seconds=3)
    one = devices.train_seconds(ALL, np.full(4, 100))
    assert sorted(one) == pytest.approx([3, 9, 15, 21])
    np.testing.assert_allclose(devices.train_seconds(ALL, np.array([100, 200, 50, 0])), one * [1, 2, 0.5, 0])
    backwards = devices.train_seconds(ALL[::-1], np.full(4, 100))
    assert backwards.tolist() == one[::-1].tolist()


def test_seconds_per_sample_take_the_place_of_a_jobs() -> None:
    devices = fleet(seconds_per_sample=0.25, fastest_job_seconds=77)
    assert devices.train_seconds(ALL, np.array([4, 0, 100, 1])).tolist() == [1, 0, 25, 0.25]
    slower = fleet(seconds_per_sample=0.25, speed_ratio=3)
    assert sorted(slower.train_seconds(ALL, np.full(4, 4))) == pytest.approx([1, 5 / 3, 7 / 3, 3])


@pytest.mark.parametrize("kind", ["uniform", "lognormal", "tiers"])
def test_fixed_jobs_take_a_devices_own_time_whatever_it_holds(kind: str) -> None:
    sizes = np.random.default_rng(0).integers(1, 4000, 100)
    devices = fleet(sizes, profile=kind, speed_ratio=5, fastest_job_seconds=7, job="fixed")
    equal = fleet(np.full(100, 9), profile=kind, speed_ratio=5, fastest_job_seconds=7)
    seconds = devices.train_seconds(np.arange(100), sizes * 5)
    assert (seconds.min(), seconds.max()) == (7, 35)
    assert seconds.tolist() == equal.train_seconds(np.arange(100), np.full(100, 45)).tolist()
    np.testing.assert_allclose(devices.train_seconds(np.arange(100), sizes * 3), 0.6 * seconds, rtol=1e-14)
    np.testing.assert_allclose(devices.train_seconds(np.arange(100), sizes), 0.2 * seconds, rtol=1e-14)


def test_fixed_jobs_of_who_has_nothing_and_of_some_only() -> None:
    devices = fleet(job="fixed")
    assert devices.train_seconds(ALL, SIZES * 5).tolist() == [10, 0, 10, 10]
    assert devices.train_seconds(np.array([2, 0]), np.array([750, 100])).tolist() == [5, 2]


def test_links_that_are_not_given_take_no_time() -> None:
    assert fleet().upload_seconds(ALL, 10**15).tolist() == [0] * 4
    assert fleet().download_seconds(ALL, np.full(4, 10**15)).tolist() == [0] * 4
    assert fleet(uplink_mbps=1).download_seconds(ALL, 10**15).tolist() == [0] * 4


def test_links_by_hand() -> None:
    """A megabyte is eight megabits: 8 s at 1 Mbit/s."""
    devices = fleet(uplink_mbps=2, downlink_mbps=16, latency_seconds=0.25)
    assert devices.upload_seconds(ALL, 1_000_000).tolist() == [4] * 4
    assert devices.upload_seconds(ALL[:2], np.array([500_000, 0])).tolist() == [2, 0]
    assert devices.download_seconds(ALL, 1_000_000).tolist() == [0.75] * 4
    assert devices.download_seconds(ALL[:2], np.array([2_000_000, 0])).tolist() == [1.25, 0.25]


def test_the_divisor_slows_both_links_and_not_the_latency() -> None:
    devices = fleet(uplink_mbps=2, downlink_mbps=16, latency_seconds=0.25, bandwidth_divisor=100)
    assert devices.upload_seconds(ALL, 1_000_000) == pytest.approx([400] * 4)
    assert devices.download_seconds(ALL, 1_000_000) == pytest.approx([50.25] * 4)


@pytest.mark.parametrize("dropout", [0.02, 0.3, 0.9])
def test_jobs_are_lost_as_often_as_asked(dropout: float) -> None:
    devices = fleet(np.ones(len(MANY), dtype=np.int64), dropout=dropout)
    shares = np.concatenate([devices.fails_at(MANY, 0, wave) for wave in range(5)])
    lost = np.isfinite(shares)
    assert stats.binomtest(int(lost.sum()), len(shares), dropout).pvalue > 1e-3
    assert stats.kstest(shares[lost], "uniform").pvalue > 1e-3
    assert 0 <= shares[lost].min() <= shares[lost].max() < 1


def test_what_is_lost_is_what_the_named_stream_says() -> None:
    devices = fleet(np.ones(len(MANY), dtype=np.int64), dropout=0.5)
    for client in (3, 700, 1999):
        fails, where = (int(raw) / 2**64 for raw in streams.bits(streams.keys(9, "lost jobs", 4, client), 2)[0])
        (found,) = devices.fails_at(np.array([client]), 9, 4)
        assert found == pytest.approx(where) if fails < 0.5 else np.isnan(found)


def test_a_devices_luck_does_not_depend_on_who_else_takes_part() -> None:
    devices = fleet(np.ones(len(MANY), dtype=np.int64), dropout=0.5)
    crowd = devices.fails_at(MANY, 3, 8)
    alone = np.concatenate([devices.fails_at(np.array([client]), 3, 8) for client in range(100)])
    np.testing.assert_array_equal(alone, crowd[:100])
    np.testing.assert_array_equal(devices.fails_at(MANY[::-3], 3, 8), crowd[::-3])
    others = [devices.fails_at(MANY, seed, wave) for seed, wave in ((3, 9), (4, 8))]
    assert all(0.3 < np.mean(np.isnan(other) == np.isnan(crowd)) < 0.7 for other in others)


def test_nothing_is_lost_by_default() -> None:
    assert np.isnan(fleet().fails_at(ALL, 0, 1)).all()


def test_nothing_overflows_at_the_ends_of_the_bounds() -> None:
    slow = fleet(
        fastest_job_seconds=1e12, speed_ratio=1e9, uplink_mbps=1e-6, downlink_mbps=1e-6, bandwidth_divisor=1e9,
        latency_seconds=1e12,
    )  # fmt: skip
    assert np.isfinite(slow.train_seconds(ALL, np.full(4, 10**15))).all()
    assert np.isfinite(slow.upload_seconds(ALL, 10**15) + slow.download_seconds(ALL, 10**15)).all()


def test_a_fleet_has_a_length_and_the_columns_do_too() -> None:
    devices = fleet(availability=0.5)
    assert len(devices) == 4
    columns = [value for value in vars(devices).values() if isinstance(value, np.ndarray)]
    assert len(columns) == 9
    assert all(column.shape == (4,) for column in columns)
