"""What training in bfloat16 gains on this processor: `local.precision=bfloat16` against float32, side by side.

python benchmarks/precision.py [--models lenet5,resnet20] [--batches 10,32,128] [--times 9]

Each number is the fastest of several gradients of one mini-batch of CIFAR-like images, by autograd on one core, taken
in turns. A ratio above 1 means that bfloat16 is faster.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from fedkeel import models
from fedkeel.local.batches import Batch, Samples
from fedkeel.local.gradients.autograd import AutogradGradient
from fedkeel.params import FlatModel

SHAPE, CLASSES = (3, 32, 32), 10


def seconds(name: str, size: int, times: int) -> dict[bool, float]:
    """Of one gradient, in float32 and in bfloat16 (True)."""
    torch.manual_seed(0)
    module = models.build(name, models.Inputs(SHAPE, CLASSES, None))
    w = FlatModel(module).w.clone().unsqueeze(0)
    x, y = torch.randn(1, size, *SHAPE), torch.randint(0, CLASSES, (1, size))
    ways = {
        half: AutogradGradient(models.build(name, models.Inputs(SHAPE, CLASSES, None)), False, half)
        for half in (False, True)
    }
    taken: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(times + 2):
        for half, gradient in ways.items():
            batch = Batch(Samples((x, y)), np.array([size]), torch.full((1, size), 1 / size), fresh=True)
            began = time.perf_counter()
            gradient(w, batch)
            taken[half].append(time.perf_counter() - began)
    return {half: min(each[2:]) for half, each in taken.items()}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="lenet5,resnet20")
    parser.add_argument("--batches", default="10,32,128")
    parser.add_argument("--times", type=int, default=9)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | mini-batch | float32 | bfloat16 | ratio |\n|---|---|---|---|---|")
    for name in asked.models.split(","):
        for size in map(int, asked.batches.split(",")):
            found = seconds(name, size, asked.times)
            full, half = found[False], found[True]
            print(f"| {name} | {size} | {full * 1e3:.2f} ms | {half * 1e3:.2f} ms | {full / half:.2f} |")


if __name__ == "__main__":
    main()
