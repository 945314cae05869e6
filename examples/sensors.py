"""Six motors learn to tell how hot their windings are, from series of load and ambient temperature.

The series are synthetic. All motors obey the same physics, but each has its own duty, climate and cooling, and a sensor
inside the winding for a short time only. The last quarter of that time is the motor's own test. This script writes
motors.npz into the current folder. On the command line, with a model of fedkeel's own:

    fedkeel run --set dataset=motors.npz task=regression metrics=rmse,r2,mae rounds=40 local.epochs=2 local.lr=0.02
"""

import numpy as np
import torch
from torch import nn

from fedkeel import Experiment, FederatedData, run

NAMES, DUTY = list("ABCDEF"), [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
CLIMATE, COOLING = [8, 20, 12, 22, 15, 25], [0.10, 0.11, 0.09, 0.10, 0.11, 0.10]
LENGTH, TRAIN, TEST = 32, 90, 30  # time steps of a window, and windows of each motor
rng = np.random.default_rng(3)


def motor(duty: float, climate: float, cooling: float) -> tuple[np.ndarray, np.ndarray]:
    """Windows of load and ambient temperature [windows, 2, length], and the winding's temperature after each."""
    steps = LENGTH * (TRAIN + TEST)
    load, ambient, winding = np.full(steps, duty), np.full(steps, float(climate)), np.full(steps, climate + 40.0)
    for t in range(1, steps):
        load[t] = np.clip(load[t - 1] + 0.1 * (duty - load[t - 1]) + rng.normal(0, 0.15), 0, 1.8)
        ambient[t] = climate + 6 * np.sin(t / 40) + rng.normal(0, 0.5)
        winding[t] = winding[t - 1] + cooling * (60 * load[t] ** 2 - (winding[t - 1] - ambient[t]))
    ends = np.arange(LENGTH, steps + 1, LENGTH)
    x = np.stack([np.stack([load[end - LENGTH : end], ambient[end - LENGTH : end] / 10 - 2]) for end in ends])
    return x, (winding[ends - 1] + rng.normal(0, 1, len(ends))) / 20 - 3  # in units of 20 degrees above 60


motors = [motor(*each) for each in zip(DUTY, CLIMATE, COOLING, strict=True)]
pairs = [((x[:TRAIN], y[:TRAIN]), (x[TRAIN:], y[TRAIN:])) for x, y in motors]  # to train on, and to test on
data = FederatedData.from_clients(pairs, client_names=NAMES)

train, test = ([np.concatenate(arrays) for arrays in zip(*part, strict=True)] for part in zip(*pairs, strict=True))
whose = {"client": np.repeat(NAMES, TRAIN), "client_test": np.repeat(NAMES, TEST)}
np.savez("motors.npz", x=train[0], y=train[1], x_test=test[0], y_test=test[1], **whose)  # for the command line

torch.manual_seed(0)  # the first weights of a model of your own are drawn by PyTorch
model = nn.Sequential(
    *(nn.Conv1d(2, 16, 8, stride=4), nn.ReLU(), nn.Flatten()),
    *(nn.Linear(16 * 7, 32), nn.ReLU(), nn.Linear(32, 1)),
)
local = {"epochs": 2, "batch_size": 16, "lr": 0.01, "momentum": 0.9}
experiment = Experiment(task="regression", metrics=["rmse", "r2", "mae"], rounds=50, local=local)
result = run(experiment, data=data, model=model)
together = result.evaluate_clients(metric="rmse")

print("RMSE in degrees, for each motor in the last quarter of its time")
print("motor  alone  together")
for name, error in zip(data.client_names, together, strict=True):
    alone = run(experiment, data=data.only(name), model=model).metrics["rmse"]
    print(f"{name:5}  {20 * alone:5.1f}  {20 * error:8.1f}")
print(f"all motors: R2 {result.metrics['r2']:.3f}, mean absolute error {20 * result.metrics['mae']:.1f} degrees")
