"""Where numbers lie in memory has no bearing on what PyTorch computes with them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import os
import fedkeel
import torch

torch.set_num_threads(1)
torch.manual_seed(0)


def at(x, place):
    room = torch.empty(x.numel() + 32)
    start = (place - room.data_ptr() // 4) % 16
    return room[start : start + x.numel()].view(x.shape).copy_(x)


found = set()
x, w = torch.randn(32, 32), torch.randn(2, 32)
for place in range(16):
    for other in range(16):
        here, there = at(x, place), at(w, other)
        found.add(torch.nn.functional.linear(here, there).numpy().tobytes())
print(len(found), os.environ["MKL_CBWR"])
"""


@pytest.mark.parametrize("set_by_user", [None, "COMPATIBLE"])
def test_products_do_not_depend_on_their_place(set_by_user: str | None) -> None:
    """As they do in MKL unless it is told otherwise; what a user has set stays."""
    environment = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    environment |= {"MKL_CBWR": set_by_user} if set_by_user else {}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.stdout, done.returncode) == (f"1 {set_by_user or 'AUTO'}\n", 0), done.stderr
