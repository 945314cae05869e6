"""Folders of images."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedkeel.data.federated import FederatedData
from fedkeel.data.settings import DatasetSettings
from fedkeel.errors import InputError


def draw(path: Path, value: int | tuple[int, int, int], size: tuple[int, int] = (6, 4)) -> None:
    """An image of one colour, `size` pixels wide and high."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L" if isinstance(value, int) else "RGB", size, value).save(path)


def load(root: Path, **how) -> FederatedData:
    rest = {key: how.pop(key) for key in ("partition", "clients", "seed") if key in how}
    return FederatedData.from_settings(DatasetSettings(name=f"{root}/", **how), **rest)


@pytest.fixture
def zoo(tmp_path):
    for number in range(10):
        draw(tmp_path / "zoo" / "cat" / f"{number}.png", (10 * number, 0, 0))
        draw(tmp_path / "zoo" / "ape" / f"{number}.jpg", (0, 10 * number, 0))
    return tmp_path / "zoo"


def test_folders_are_classes(zoo):
    data = load(zoo, clients=2, normalise="none")
    assert data.class_names == ("ape", "cat")
    assert data.train.x.shape == (16, 3, 4, 6)
    assert data.name == "zoo"
    for x, y in zip(data.train.x, data.train.y, strict=True):
        assert x[0].max() < 10 if y == 0 else x[1].max() < 10


def test_pixels_are_scaled(zoo):
    data = load(zoo, clients=2)
    assert data.train.x.mean((0, 2, 3)).abs().max() < 1e-4
    assert load(zoo, clients=2, normalise="unit").train.x.max() <= 1


def test_folders_can_be_clients(tmp_path):
    for client, images in {"Bern": 4, "Ulm": 8}.items():
        for number in range(images):
            draw(tmp_path / "sites" / client / "ab"[number % 2] / f"{number}.png", number)
    data = load(tmp_path / "sites", client="folder")
    assert data.client_names == ("Bern", "Ulm")
    assert data.train.x.shape[1:] == (1, 4, 6)
    assert (data.sizes + data.test_rows.sizes).tolist() == [4, 8]  # type: ignore[union-attr]
    with pytest.raises(InputError, match=r"set dataset.client=folder if the first folders are clients"):
        load(tmp_path / "sites")


def test_folders_called_train_and_test_are_that(tmp_path):
    for split, images in {"train": 6, "test": 4, "val": 2}.items():
        for number in range(images):
            draw(tmp_path / "split" / split / "ab"[number % 2] / f"{number}.png", number)
    data = load(tmp_path / "split", clients=2)
    assert (len(data.train), len(data.test), len(data.validation or ())) == (6, 4, 2)
    assert data.class_names == ("a", "b")


def test_grey_and_colour(zoo):
    assert load(zoo, clients=2, colour="L").shape == (1, 4, 6)
    assert load(zoo, clients=2, colour="RGB").shape == (3, 4, 6)


def test_sizes_must_agree_or_are_made_to(zoo):
    draw(zoo / "cat" / "wide.png", (1, 2, 3), (9, 4))
    with pytest.raises(
        InputError, match=r"dataset.resize must be set, as images have different sizes: .* 6 x 4 .* 9 x 4"
    ):
        load(zoo, clients=2)
    assert load(zoo, clients=2, resize=8).train.x.shape[1:] == (3, 8, 8)


def test_damaged_images_are_told(zoo):
    (zoo / "cat" / "broken.png").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"broken.png is not an image that can be read"):
        load(zoo, clients=2)


def test_a_folder_without_images_is_told(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(InputError, match=r"has no images of the form root/class/image.png"):
        load(tmp_path)
    with pytest.raises(InputError, match=r"dataset.client must be 'folder' for a folder of images; got 'site'"):
        load(tmp_path, client="site")


def test_a_folder_for_hugging_face_is_told(tmp_path):
    (tmp_path / "dataset_info.json").write_text("{}")
    with pytest.raises(InputError, match=r"is a Hugging Face data set; write hf:"):
        load(tmp_path)


def test_pixels_are_those_of_pillow(tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    for number in range(4):
        path = tmp_path / "one" / "a" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    data = load(tmp_path / "one", clients=1, normalise="none")
    assert (data.train.x[0].numpy() == image.transpose(2, 0, 1)).all()
