"""Settings of clusters that are refused before anything is started."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from fedkeel import Experiment, InputError, run
from fedkeel.local.cluster.wish import Node, Wish
from fedkeel.local.settings import ExecutorSettings


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kind": "processes", "address": "auto"}, "executor.address needs executor.kind=ray, but processes is chosen"),
        ({"kind": "auto", "cpus": 2}, "executor.cpus needs executor.kind=ray, but auto is chosen"),
        ({"kind": "serial", "gpus": 1}, "executor.gpus needs executor.kind=ray"),
        ({"kind": "threads", "memory": 1}, "executor.memory needs executor.kind=ray"),
        ({"kind": "ray", "address": "ray://10.0.0.1:10001"}, "give HOST:PORT of its head or auto"),
        ({"kind": "ray", "address": "somewhere"}, "executor.address must be HOST:PORT, such as 10.0.0.1:6379, or auto"),
        ({"kind": "ray", "address": "host:99999"}, "executor.address must be HOST:PORT"),
        ({"kind": "ray", "gpus": 1.5}, "executor.gpus must be a whole number or less than 1; got 1.5"),
        ({"kind": "ray", "gpus": 1, "native": True}, "executor.native does not go with executor.gpus"),
        ({"kind": "ray", "cpus": 0}, "executor.cpus"),
        ({"kind": "ray", "memory": -1}, "executor.memory"),
        ({"kind": "ray", "workers": 0}, "executor.workers"),
    ],
)
def test_settings_that_do_not_fit(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as error:
        Experiment(executor=given)
    assert words in str(error.value)


def test_workers_reserve_what_they_use() -> None:
    for cpus in (None, 1):
        with pytest.raises(InputError, match=r"threads=2 needs as many CPUs for each worker .* set executor\.cpus=2"):
            Experiment(threads=2, executor={"kind": "ray", "cpus": cpus})
    Experiment(threads=2, executor={"kind": "ray", "cpus": 2})
    Experiment(threads=2, executor={"kind": "ray", "gpus": 1})


def test_what_is_left_open() -> None:
    """With a stack, everything is settled; without, the probe also tries native kernels."""
    assert not ExecutorSettings(kind="ray").completed.settled
    settled = ExecutorSettings(kind="ray", stack=3).completed
    assert settled.settled
    assert not settled.native
    assert ExecutorSettings(kind="ray", native=True).completed.channels_last is False


def test_without_ray_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError) as error:
        run(Experiment(executor={"kind": "ray", "stack": 0}, rounds=1, clients=4, per_round=2))
    assert str(error.value) == "executor.kind=ray needs Ray; run pip install 'fedkeel[ray]'"


def test_what_a_worker_needs() -> None:
    wish = Wish.of(ExecutorSettings(kind="ray", cpus=0.5, gpus=0.25, memory=2))
    assert wish.resources == {"CPU": 0.5, "GPU": 0.25, "memory": 2e9}
    assert wish.words == "0.5 CPUs and 0.25 GPUs and 2 GB of memory"
    assert Wish.of(ExecutorSettings(kind="ray")).resources == {"CPU": 1.0}


@pytest.mark.parametrize(
    ("has", "needs", "fit"),
    [
        ({"CPU": 4.0}, {"CPU": 1.0}, 4),
        ({"CPU": 4.0}, {"CPU": 0.1}, 40),
        ({"CPU": 4.0, "GPU": 1.0}, {"CPU": 1.0, "GPU": 0.5}, 2),
        ({"CPU": 4.0}, {"CPU": 1.0, "GPU": 1.0}, 0),
        ({"CPU": 4.0, "memory": 5e9}, {"CPU": 1.0, "memory": 2e9}, 2),
    ],
)
def test_how_many_workers_fit_on_a_machine(has: dict[str, float], needs: dict[str, float], fit: int) -> None:
    assert Node("a", "b", has).room(needs) == fit
