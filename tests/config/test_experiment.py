from pathlib import Path

import pytest

from fedkeel import Experiment, InputError
from fedkeel.data.partition import Dirichlet
from fedkeel.wire.cast import Cast
from fedkeel.wire.clip import Clip

SPELLINGS = [
    "dataset=fashion-mnist",
    "model=lenet5",
    "clients=100",
    "per_round=10",
    "rounds=20",
    "seed=1",
    "algorithm.name=fedavg",
    "local.epochs=1",
    "local.batch_size=32",
    "local.lr=0.05",
    "partition.kind=dirichlet",
    "partition.alpha=0.5",
    "target_accuracy=0.7",
]


def test_the_documented_spellings() -> None:
    experiment = Experiment.load(overrides=SPELLINGS)
    assert experiment.dataset.name == "fashion-mnist"
    assert experiment.model.name == "lenet5"
    assert (experiment.clients, experiment.participants, experiment.rounds, experiment.seed) == (100, 10, 20, 1)
    assert experiment.partition.kind == "dirichlet"
    assert experiment.partition.alpha == 0.5
    assert experiment.local.lr == 0.05
    same = Experiment(
        dataset="fashion-mnist", model="lenet5", clients=100, per_round=10, rounds=20, seed=1, target_accuracy=0.7,
        algorithm={"name": "fedavg"}, local={"epochs": 1, "batch_size": 32, "lr": 0.05},
        partition={"kind": "dirichlet", "alpha": 0.5},
    )  # fmt: skip
    assert same == experiment


def test_yaml_out_and_in_is_the_same(tmp_path: Path) -> None:
    experiment = Experiment.load(
        overrides=[*SPELLINGS, "model.name=resnet20", "model.norm=group", "algorithm.server_lr=0.5"]
    )
    path = tmp_path / "e.yaml"
    path.write_text(experiment.to_yaml())
    assert Experiment.load(path) == experiment
    assert "server_lr: 0.5" in experiment.to_yaml()
    assert "norm: group" in experiment.to_yaml()


def test_every_default_is_visible() -> None:
    shown = Experiment().to_yaml()
    for setting in ("server_lr: 1.0", "momentum: 0.0", "per_round: 10", "size_ratio: 1.0", "evaluate_every: 1"):
        assert setting in shown


def test_overrides_on_a_file(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text("dataset: mnist\nclients: 7\npartition: {kind: dirichlet, alpha: 0.1}\nlocal: {lr: 1e-3}\n")
    experiment = Experiment.load(path, ["dataset.train_limit=500", "local.epochs=2", "partition.alpha=0.3"])
    assert experiment.dataset.name == "mnist"
    assert experiment.dataset.train_limit == 500
    assert (experiment.local.lr, experiment.local.epochs) == (1e-3, 2)
    assert experiment.partition.alpha == 0.3
    assert Experiment.load(path, ["partition=iid"]).partition.kind == "iid"  # the word replaces the whole section


def test_one_way_to_count_participants_replaces_the_other(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text(Experiment(clients=50).to_yaml())  # spells out per_round
    assert Experiment.load(path, ["participation=0.5"]).participants == 25
    path.write_text("clients: 50\nparticipation: 0.5\n")
    assert Experiment.load(path, ["per_round=3"]).participants == 3


def test_aliases_and_participants() -> None:
    assert Experiment(partition="pathological").partition.kind == "shards"
    assert Experiment(partition={"size_ratio": 3}).partition.kind == "iid"
    assert Experiment(clients=4).participants == 4
    assert Experiment(clients=100, participation=0.2).participants == 20
    assert Experiment(local={"batch_size": "full"}).local.batch_size == "full"


@pytest.mark.parametrize("text", ["1e-1", "1E-1", "0.1", ".1", "1.0e-1", "+1e-1"])
def test_numbers_in_every_spelling(text: str, tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(f"local: {{lr: {text}}}\nmodel: {{name: mnist-cnn, dropout: {text}}}\n")
    for experiment in (
        Experiment.load(tmp_path / "e.yaml"),
        Experiment.load(overrides=[f"local.lr={text}", "model=mnist-cnn", f"model.dropout={text}"]),
    ):
        assert (experiment.local.lr, experiment.model.options["dropout"]) == (0.1, 0.1)


def test_replace_validates_and_recomputes_defaults() -> None:
    assert Experiment(clients=50).replace(clients=3).participants == 3
    with pytest.raises(InputError, match="clients must be greater than 0; got 0"):
        Experiment().replace(clients=0)


def test_sections_given_as_objects_survive_replacing() -> None:
    experiment = Experiment(partition=Dirichlet(size_ratio=3.0), clients=5).replace(rounds=3)
    assert (experiment.partition, experiment.rounds, experiment.clients) == (Dirichlet(size_ratio=3.0), 3, 5)


@pytest.mark.parametrize("name", ["1e5", "null", "true", "3", "ü", "a: b", "#x", "weird $ [x]"])
def test_any_name_reads_back(name: str, tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(Experiment(name=name).to_yaml(), encoding="utf-8")
    assert Experiment.load(tmp_path / "e.yaml").name == name


def test_anchors_and_merges_work(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text("local: &l {lr: 0.2, epochs: 3}\n")
    assert Experiment.load(tmp_path / "e.yaml").local.epochs == 3
    (tmp_path / "e.yaml").write_text("fleet: &f {fastest_job_seconds: 3}\nlocal: {<<: {lr: 0.2}, epochs: 3}\n")
    assert Experiment.load(tmp_path / "e.yaml").local.lr == 0.2


def test_it_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Experiment().clients = 3  # type: ignore[misc]


@pytest.mark.parametrize("wire", ["cast", "{kind: cast}", "[cast]", "[{kind: cast}]"])
def test_a_list_of_sections_may_be_one_section_or_one_word(wire: str, tmp_path: Path) -> None:
    assert Experiment.load(overrides=[f"wire={wire}"]).wire == (Cast(),)
    path = tmp_path / "e.yaml"
    path.write_text(f"wire: {wire}\n")
    assert Experiment.load(path).wire == (Cast(),)
    if not wire.startswith("["):
        assert Experiment.load(path, ["wire.dtype=bfloat16"]).wire == (Cast(dtype="bfloat16"),)
    assert Experiment(wire=Cast()).wire == (Cast(),)


@pytest.mark.parametrize("wire", ["clip", "{kind: clip}", "[clip]", "[{kind: clip, norm: 1}]"])
def test_a_setting_of_a_section_in_a_list_is_set_by_its_place(wire: str, tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text(f"wire: {wire}\n")
    for setting in ("wire.0.norm=5", "wire.0={kind: clip, norm: 5}"):
        assert Experiment.load(path, [setting]).wire == (Clip(norm=5),)
        assert Experiment.load(overrides=[setting, f"wire={wire}"]).wire == (Clip(norm=5),)
    path.write_text("wire: [cast, {kind: clip, norm: 1}, cast]\n")
    settings = ["wire.1.norm=5", "wire.2=clip", "wire.2.norm=6"]
    assert Experiment.load(path, settings).wire == (Cast(), Clip(norm=5), Clip(norm=6))


def test_a_job_is_as_long_as_was_said_last(tmp_path: Path) -> None:
    """Steps and epochs replace each other where one is set on top of a file, and every file is read back as it was."""
    path = tmp_path / "a.yaml"
    path.write_text("local: {epochs: 5, lr: 0.1}\n")
    steps = Experiment.load(path, ["local.steps=7", "fleet.tau_max=6"])
    assert (steps.local.epochs, steps.local.steps, steps.local.lr) == (None, 7, 0.1)
    assert Experiment.load(path, ["local.steps=null"]).local.epochs == 5
    path.write_text(steps.to_yaml())
    assert Experiment.load(path) == steps
    epochs = Experiment.load(path, ["local.epochs=8"])
    assert (epochs.local.epochs, epochs.local.steps) == (8, None)
    path.write_text("local: {epochs: 5, steps: 7}\n")
    with pytest.raises(InputError, match=r"local\.epochs and local\.steps both say"):
        Experiment.load(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"clients: [", ["not valid YAML"]),
        (b"rounds: 3\nrounds: 7\n", ["rounds is given twice"]),
        (b"local: {lr: 1, lr: 2}\n", ["lr is given twice"]),
        (b"- 1\n- 2\n", ["list", "mapping"]),
        (b"\xff\xfe\x00", ["not valid YAML"]),
        (b"1: 2\n", ["1 is not a setting"]),
        (b"null: 2\n", ["None"]),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, words: list[str]) -> None:
    path = tmp_path / "e.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        Experiment.load(path)
    for word in words:
        assert word in str(caught.value)


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.yaml.*No such file"):
        Experiment.load(tmp_path / "nowhere.yaml")
    with pytest.raises(InputError, match="directory"):
        Experiment.load(tmp_path)
    (tmp_path / "empty.yaml").write_text("")
    assert Experiment.load(tmp_path / "empty.yaml") == Experiment()
