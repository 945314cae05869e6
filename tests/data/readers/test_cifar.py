import os
import pickle
import struct

import numpy as np
import pytest

from fedkeel.data.readers import cifar
from fedkeel.errors import InputError

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 3, 32, 32), np.uint8)
FINE = np.array([7, 0, 9, 3], np.uint8)
COARSE = np.array([19, 18, 17, 16], np.uint8)


def record_file(path, *labels):
    path.write_bytes(np.concatenate([*(part[:, None] for part in labels), IMAGES.reshape(4, -1)], 1).tobytes())
    return path


def python2_pickle(images, labels, key=b"labels"):
    """A batch as Python 2 pickled the published ones: protocol 2, byte strings, numpy.core."""
    integer = lambda number: b"M" + struct.pack("<H", number)  # noqa: E731
    text = lambda value: b"U" + bytes([len(value)]) + value  # noqa: E731
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + text(b"|") + b"NNN" + b"J\xff\xff\xff\xff" * 2 + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    data = images.tobytes()
    state = b"(K\x01" + integer(len(images)) + integer(3072) + b"\x86" + dtype + b"\x89"
    array += state + b"T" + struct.pack("<I", len(data)) + data + b"tb"
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(key) + listed + b"u."


def pickle_file(path, content):
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol=4))
    return path


def test_binary_records_of_cifar10(tmp_path):
    images, labels = cifar.read_binary(record_file(tmp_path / "b.bin", FINE), classes=10, label_bytes=1)
    assert np.array_equal(images, IMAGES)
    assert labels.tolist() == FINE.tolist()


def test_binary_records_of_cifar100_give_the_fine_label(tmp_path):
    path = record_file(tmp_path / "b.bin", COARSE, FINE)
    images, labels = cifar.read_binary(path, classes=100, label_bytes=2)
    assert np.array_equal(images, IMAGES)
    assert labels.tolist() == FINE.tolist()


@pytest.mark.parametrize("cut", [1, 3072, 4 * 3073])
def test_truncated_records_are_refused(tmp_path, cut):
    path = record_file(tmp_path / "b.bin", FINE)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(InputError, match=rf"b\.bin must hold records of 3073 bytes each; got {4 * 3073 - cut}"):
        cifar.read_binary(path, classes=10, label_bytes=1)


def test_a_binary_label_out_of_range_is_refused(tmp_path):
    path = record_file(tmp_path / "b.bin", COARSE)
    with pytest.raises(InputError, match=r"b\.bin must hold labels from 0 to 9; got 19 at index 0"):
        cifar.read_binary(path, classes=10, label_bytes=1)


def test_a_pickle_that_python_2_wrote(tmp_path):
    content = python2_pickle(IMAGES, FINE.tolist())
    assert np.array_equal(pickle.loads(content, encoding="bytes")[b"data"], IMAGES.reshape(4, -1))
    images, labels = cifar.read_pickle(pickle_file(tmp_path / "b", content), classes=10, label_key="labels")
    assert np.array_equal(images, IMAGES)
    assert labels.tolist() == FINE.tolist()


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_pickle_that_python_3_wrote(tmp_path, order):
    data = np.asarray(IMAGES.reshape(4, -1), order=order)
    path = pickle_file(tmp_path / "b", {"data": data, "fine_labels": FINE.tolist(), "filenames": ["a"] * 4})
    images, labels = cifar.read_pickle(path, classes=100, label_key="fine_labels")
    assert np.array_equal(images, IMAGES)
    assert labels.tolist() == FINE.tolist()


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickle_cannot_run_code(tmp_path):
    path = pickle_file(tmp_path / "b", {"data": Touch(tmp_path / "made"), "labels": []})
    with pytest.raises(InputError, match=r"b must hold a pickled CIFAR batch \(it refers to posix\.mkdir"):
        cifar.read_pickle(path, classes=10, label_key="labels")
    assert not (tmp_path / "made").exists()


DATA = IMAGES.reshape(4, -1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (python2_pickle(IMAGES, [1, 2, 3, 4])[:-9000], "must hold a pickled CIFAR batch"),
        (b"no pickle", "must hold a pickled CIFAR batch"),
        ([1, 2], "must hold a pickled dict; got list"),
        ({"labels": [1, 2, 3, 4]}, r"must hold an entry 'data'; got \['labels'\]"),
        ({"data": DATA}, "must hold an entry 'labels'"),
        ({"data": DATA[:, 1:], "labels": [1, 2, 3, 4]}, r"must hold data of shape \[n, 3072\]"),
        ({"data": DATA.astype("<i8"), "labels": [1, 2, 3, 4]}, "instead of u1"),
        ({"data": DATA, "labels": [1, 2, 3]}, "must hold 4 integers as labels"),
        ({"data": DATA, "labels": [1, 2, 3, 0.5]}, "must hold 4 integers as labels"),
        ({"data": DATA, "labels": [1, 2, 3, 10]}, r"must hold labels from 0 to 9; got 10 at index 3"),
    ],
)
def test_a_damaged_pickle_is_refused_by_name(tmp_path, content, message):
    path = pickle_file(tmp_path / "data_batch_1", content)
    with pytest.raises(InputError, match=f"data_batch_1 .*{message}"):
        cifar.read_pickle(path, classes=10, label_key="labels")
