import numpy as np
import pytest
from PIL import Image

from fedkeel.data.readers import tiny_imagenet
from fedkeel.errors import InputError

CLASSES = ["n01", "n02", "n10"]


def save(path, colour, size=64):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L" if isinstance(colour, int) else "RGB", (size, size), colour).save(path, "JPEG", quality=95)


@pytest.fixture
def folder(tmp_path):
    for number, name in enumerate(reversed(CLASSES)):
        for index in range(2):
            save(tmp_path / "train" / name / "images" / f"{name}_{index}.JPEG", (80 * number, 10, 200))
    save(tmp_path / "val" / "images" / "val_0.JPEG", 120)
    save(tmp_path / "val" / "images" / "val_1.JPEG", (250, 0, 0))
    rows = ["val_1.JPEG\tn10\t0\t0\t62\t62", "val_0.JPEG\tn01\t0\t0\t62\t62"]
    (tmp_path / "val" / "val_annotations.txt").write_text("\n".join(rows) + "\n")
    return tmp_path


def test_training_images_are_labelled_by_the_sorted_class_names(folder):
    images, labels = tiny_imagenet.read_train(folder, classes=3)
    assert images.shape == (6, 3, 64, 64)
    assert images.dtype == np.uint8
    assert labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert np.abs(images.mean((2, 3))[::2] - [[160, 10, 200], [80, 10, 200], [0, 10, 200]]).max() < 4


def test_validation_images_follow_the_annotations_and_grey_becomes_rgb(folder):
    images, labels = tiny_imagenet.read_validation(folder, classes=3)
    assert labels.tolist() == [2, 0]
    assert np.abs(images.mean((2, 3)) - [[250, 0, 0], [120, 120, 120]]).max() < 4


def test_the_number_of_classes_is_checked(folder):
    with pytest.raises(InputError, match="train must hold 200 folders, one per class; got 3"):
        tiny_imagenet.read_train(folder, classes=200)


def test_a_class_without_images_is_refused(folder):
    for path in (folder / "train" / "n02" / "images").iterdir():
        path.unlink()
    with pytest.raises(InputError, match=r"n02/images must hold \*\.JPEG files"):
        tiny_imagenet.read_train(folder, classes=3)


def test_an_image_of_another_size_is_refused(folder):
    save(folder / "train" / "n02" / "images" / "n02_9.JPEG", (1, 2, 3), size=32)
    with pytest.raises(InputError, match=r"n02_9\.JPEG must have 64 x 64 pixels; got 32 x 32"):
        tiny_imagenet.read_train(folder, classes=3)


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: data[::-1]])
def test_a_damaged_image_is_refused(folder, damage):
    path = folder / "val" / "images" / "val_0.JPEG"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=r"val_0\.JPEG must be a JPEG image"):
        tiny_imagenet.read_validation(folder, classes=3)


@pytest.mark.parametrize("row", ["val_0.JPEG", "val_0.JPEG\tn99\t0\t0\t1\t1"])
def test_an_annotation_without_a_known_class_is_refused(folder, row):
    with (folder / "val" / "val_annotations.txt").open("a") as file:
        file.write(row + "\n")
    with pytest.raises(InputError, match=r"val_annotations\.txt must name a file and a class.*in line 3"):
        tiny_imagenet.read_validation(folder, classes=3)


def test_absent_annotations_are_named(folder):
    (folder / "val" / "val_annotations.txt").unlink()
    with pytest.raises(InputError, match=r"val_annotations\.txt cannot be read"):
        tiny_imagenet.read_validation(folder, classes=3)
