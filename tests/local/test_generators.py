"""torch's global generator: it is left as it was, and threads that share it do not wait for each other for ever."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from fedkeel.local import generators

THREADS = """
import gc, os, sys, threading, torch
from fedkeel.local import generators

class Finalised:
    def __del__(self):
        sum(range(50))

def garbage():
    made = Finalised()
    made.itself, made.tensor = made, torch.zeros(3, requires_grad=True) * 2

def seed():
    for number in range(60_000):
        garbage()
        generators.seed(number)

def restore():
    for _ in range(60_000):
        garbage()
        with generators.restored():
            pass

gc.set_threshold(5)
sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=work, daemon=True) for work in (seed, restore)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("done")
"""


def test_the_state_is_restored_and_seeds_are_torchs() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(9)
    before = torch.get_rng_state()
    with generators.restored():
        generators.seed(5)
        assert torch.equal(torch.rand(3), expected)
        generators.seed_all(5)
        assert torch.equal(torch.rand(3), expected)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_threads_share_it_without_a_deadlock() -> None:
    """In a process of its own, since a deadlock holds the interpreter's lock."""
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "done\n", done.stderr
