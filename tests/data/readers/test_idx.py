import gzip
import struct

import numpy as np
import pytest

from fedkeel.data.readers import idx
from fedkeel.errors import InputError

IMAGES = np.arange(3 * 2 * 5, dtype=np.uint8).reshape(3, 2, 5)
LABELS = np.array([9, 0, 4], np.uint8)


def packed(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_split(folder, prefix, images, labels, suffix=""):
    pack = gzip.compress if suffix else bytes
    (folder / f"{prefix}-images-idx3-ubyte{suffix}").write_bytes(pack(packed(images)))
    (folder / f"{prefix}-labels-idx1-ubyte{suffix}").write_bytes(pack(packed(labels)))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_split_is_read_raw_or_gzipped(tmp_path, suffix):
    write_split(tmp_path, "train", IMAGES, LABELS, suffix)
    images, labels = idx.read_split(tmp_path, "train", classes=10)
    assert images.shape == (3, 1, 2, 5)
    assert images.dtype == np.uint8
    assert np.array_equal(images[:, 0], IMAGES)
    assert labels.tolist() == [9, 0, 4]
    assert labels.dtype == np.int64


def test_letters_are_turned_upright_and_their_labels_start_at_zero(tmp_path):
    write_split(tmp_path, "letters", IMAGES, np.array([1, 26, 3], np.uint8))
    images, labels = idx.read_letters_split(tmp_path, "letters")
    assert images.shape == (3, 1, 5, 2)
    assert images[2, 0, 4, 1] == IMAGES[2, 1, 4]
    assert labels.tolist() == [0, 25, 2]


@pytest.mark.parametrize("label", [0, 27])
def test_letters_refuse_labels_outside_1_to_26(tmp_path, label):
    write_split(tmp_path, "letters", IMAGES, np.array([1, label, 3], np.uint8))
    with pytest.raises(InputError, match=rf"letters-labels.*must hold labels from 1 to 26; got {label} at index 1"):
        idx.read_letters_split(tmp_path, "letters")


def test_a_label_beyond_the_classes_is_refused(tmp_path):
    write_split(tmp_path, "train", IMAGES, LABELS)
    with pytest.raises(InputError, match=r"train-labels.*must hold labels from 0 to 8; got 9 at index 0"):
        idx.read_split(tmp_path, "train", classes=9)


def test_images_and_labels_must_be_as_many(tmp_path):
    write_split(tmp_path, "train", IMAGES, LABELS[:2])
    with pytest.raises(InputError, match=r"train-labels.*must hold 3 labels, one per image; got 2"):
        idx.read_split(tmp_path, "train", classes=10)


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte was not found, .*; put it there"):
        idx.read_split(tmp_path, "train", classes=10)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"\x00\x00\x08\x01" + data[4:], "must begin with the IDX magic 0x00000803; got 0x00000801"),
        (lambda data: b"\x00\x00\x0d\x03" + data[4:], "got 0x00000d03"),
        (lambda data: data[:0], "must begin with the IDX magic"),
        (lambda data: data[:9], "must have an IDX header of 16 bytes; got 9"),
        (lambda data: data[:-1], "must have 46 bytes for shape \\[3, 2, 5\\]; got 45"),
        (lambda data: data + b"\x00", "got 47"),
        (lambda data: gzip.compress(data)[:-9], "must be a whole gzip file"),
        (lambda data: gzip.compress(data)[:-8] + bytes(8), "must be a whole gzip file"),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path, damage, message):
    path = tmp_path / "some-images"
    path.write_bytes(damage(packed(IMAGES)))
    with pytest.raises(InputError, match=f"some-images .*{message}"):
        idx.read_images(path)


def test_a_flipped_bit_in_a_gzip_file_is_noticed(tmp_path):
    data = bytearray(gzip.compress(packed(np.random.default_rng(0).integers(0, 256, (9, 9, 9), np.uint8))))
    data[len(data) // 2] ^= 16
    path = tmp_path / "images.gz"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"images\.gz must be a whole gzip file"):
        idx.read_images(path)
