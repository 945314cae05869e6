"""Five hospitals learn together which patients are at risk. No row leaves its hospital.

The patients are synthetic. As in real tables, values are missing, deaths are rare, and hospitals differ in size, in the
age of their patients and in how often they measure lactate. This script writes hospitals.csv into the current folder.
On the command line, with a model of fedkeel's own:

    fedkeel run --set dataset=hospitals.csv dataset.target=died dataset.client=hospital dataset.missing=median \
        dataset.validation=0.15 task=binary metrics=auroc,auprc loss.class_weights=balanced local.lr=0.02
"""

import csv

import numpy as np
import torch
from torch import nn

from fedkeel import Experiment, FederatedData, run

PATIENTS = {"Basel": 1800, "Bern": 1200, "Chur": 400, "Genf": 900, "Zug": 500}
MEAN_AGE = {"Basel": 66, "Bern": 64, "Chur": 70, "Genf": 62, "Zug": 66}
LACTATE_MISSING = {"Basel": 0.1, "Bern": 0.2, "Chur": 0.5, "Genf": 0.3, "Zug": 0.4}

rng = np.random.default_rng(7)
with open("hospitals.csv", "w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["hospital", "age", "pressure", "lactate", "admission", "died"])
    for hospital, patients in PATIENTS.items():
        for _ in range(patients):
            age, pressure, lactate = rng.normal(MEAN_AGE[hospital], 13), rng.normal(120, 18), rng.lognormal(0.4, 0.5)
            admission = rng.choice(["planned", "ward", "emergency"], p=[0.5, 0.3, 0.2])
            risk = 0.06 * (age - 65) + 1.1 * (lactate - 2) + 0.002 * (pressure - 120) ** 2
            died = rng.random() < 1 / (1 + np.exp(3.8 - risk - 1.2 * (admission == "emergency")))
            measured = "" if rng.random() < LACTATE_MISSING[hospital] else f"{lactate:.1f}"
            table.writerow([hospital, round(age), round(pressure), measured, admission, "yes" if died else "no"])

data = FederatedData.from_csv(
    "hospitals.csv", target="died", client="hospital", missing="median", indicator=True, test=0.25, validation=0.15
)
torch.manual_seed(0)  # the first weights of a model of your own are drawn by PyTorch
body = nn.Linear(len(data.feature_names), 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2)
model = nn.Sequential(*body, nn.Linear(32, 1))  # one logit: yes or no
experiment = Experiment(
    task="binary",
    loss={"class_weights": "balanced"},  # as deaths are rare
    metrics=["auroc", "auprc"],
    rounds=40,
    local={"epochs": 1, "batch_size": 32, "lr": 0.05},
)
result = run(experiment, data=data, model=model)
together = result.evaluate_clients(metric="auroc", model=result.best_model)  # on each hospital's own test rows

print("AUROC     training rows  alone  together")
for name, rows, auroc in zip(data.client_names, data.sizes, together, strict=True):
    own = run(experiment, data=data.only(name), model=model)
    alone = own.evaluate_clients(metric="auroc", model=own.best_model)[0]
    print(f"{name:8}  {rows:13}  {alone:5.3f}  {auroc:8.3f}")
print(f"The best model, by validation, is that of round {result.summary['best_round']}.")
print(f"Its worst hospital is {data.client_names[np.nanargmin(together)]}, with an AUROC of {np.nanmin(together):.3f}.")
