"""Settings of the fleet: what is refused, by name, with what to do, in Python and on the command line."""

from pathlib import Path

import pytest

from fedkeel import Experiment, InputError
from fedkeel.world.fleet.settings import FleetSettings
from tests.helpers.commands import fedkeel

CHOICE = "choose one of lognormal, tiers, uniform or a file that ends in .csv or .parquet, or module:function"
ERRORS: list[tuple[list[str], list[str]]] = [
    (["fleet.profile=unifrom"], ["fleet.profile: 'unifrom' is not known; did you mean uniform?"]),
    (["fleet.profile=devices.txt"], [f"fleet.profile: 'devices.txt' is not known; {CHOICE}"]),
    (["fleet.profile=3"], ["fleet.profile must be a string; got 3"]),
    (["fleet.speed_ratio=0.5"], ["fleet.speed_ratio must be at least 1; got 0.5"]),
    (["fleet.speed_ratio=.inf"], ["fleet.speed_ratio must be a finite number; got inf"]),
    (["fleet.speed_ratio=5", "fleet.profile=a.csv"], ["fleet.speed_ratio=5 is not used with fleet.profile=a.csv, "]),
    (["fleet.speed_ratio=5", "fleet.profile=a:b"], ["=a:b, ", "; remove it, or ", "uniform, lognormal, tiers"]),
    (["fleet.tiers=1"], ["fleet.tiers must be at least 2; got 1"]),
    (["fleet.fastest_job_seconds=0"], ["fleet.fastest_job_seconds must be greater than 0; got 0"]),
    (["fleet.seconds_per_sample=-1"], ["fleet.seconds_per_sample must be greater than 0; got -1"]),
    (["fleet.job=fix"], ["fleet.job must be 'samples' or 'fixed'; got 'fix'"]),
    (
        ["fleet.job=fixed", "fleet.seconds_per_sample=0.5"],
        [
            "fleet.seconds_per_sample=0.5 is not used with fleet.job=fixed",
            "; set fleet.fastest_job_seconds instead, or fleet.job=samples",
        ],
    ),
    (["fleet.uplink_mbps=0"], ["fleet.uplink_mbps must be at least 1e-06; got 0"]),
    (["fleet.downlink_mbps=-3"], ["fleet.downlink_mbps must be at least 1e-06; got -3"]),
    (["fleet.bandwidth_divisor=0.1"], ["fleet.bandwidth_divisor must be at least 1; got 0.1"]),
    (["fleet.bandwidth_divisor=100"], ["fleet.bandwidth_divisor=100 has no effect", "; remove it, or set fleet.up"]),
    (["fleet.latency_seconds=-1"], ["fleet.latency_seconds must be at least 0; got -1"]),
    (["fleet.dropout=1"], ["fleet.dropout must be less than 1; got 1"]),
    (["fleet.dropout=-0.1"], ["fleet.dropout must be at least 0; got -0.1"]),
    (["fleet.availability=0"], ["fleet.availability must be greater than 0; got 0"]),
    (["fleet.availability=1.5"], ["fleet.availability must be at most 1; got 1.5"]),
    (["fleet.availability_period=0"], ["fleet.availability_period must be at least 0.001; got 0"]),
    (["fleet.speed=5"], ["fleet.speed is not a setting; "]),
]


@pytest.mark.parametrize(("overrides", "words"), ERRORS, ids=lambda value: value[0])
def test_bad_settings_are_refused_by_name(overrides: list[str], words: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError) as told:
        Experiment.load(overrides=overrides)
    shown = fedkeel("show", *overrides, cwd=tmp_path)
    assert shown.returncode == 2
    for word in words:
        assert word in str(told.value)
        assert word in " ".join(shown.stderr.split())


def test_a_divisor_goes_with_any_link() -> None:
    for link in ("uplink_mbps", "downlink_mbps"):
        assert FleetSettings(bandwidth_divisor=100, **{link: 1}).bandwidth_divisor == 100
    assert not FleetSettings(profile="a.csv", bandwidth_divisor=100).generated  # the trace may have links


def test_everything_comes_back_from_yaml(tmp_path: Path) -> None:
    fleet = {
        "profile": "tiers",
        "speed_ratio": 5.0,
        "tiers": 4,
        "job": "samples",
        "fastest_job_seconds": 2.0,
        "seconds_per_sample": 0.5,
        "uplink_mbps": 1.0,
        "downlink_mbps": 2.0,
        "bandwidth_divisor": 3.0,
        "latency_seconds": 0.1,
        "dropout": 0.2,
        "availability": 0.3,
        "availability_period": 40.0,
        "rho": 0.5,
        "tau_max": 1,
    }
    experiment = Experiment(fleet=fleet, local={"epochs": 2})
    (tmp_path / "e.yaml").write_text(experiment.to_yaml())
    again = Experiment.load(tmp_path / "e.yaml").fleet
    assert again == experiment.fleet
    assert again.model_dump() == fleet
