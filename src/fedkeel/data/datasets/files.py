"""The data sets' files, and the checksums of their content.

The sha256 are computed from content that agrees with published checksums: MNIST with the md5 of the raw IDX
files, Fashion-MNIST with the md5 of the published gzip files, CIFAR-10 with the sha1 that MXNet lists for its
binary batches; IMDb's JSON is as its package has it. Of files that were not at hand, the published checksum
itself stands here. EMNIST-Letters, aclImdb and Tiny-ImageNet have none but their archives': there the readers
check form, and loading checks counts.
"""

from __future__ import annotations

from fedkeel.data.sources.layout import File


def _named(digests: dict[str, str]) -> tuple[File, ...]:
    return tuple(File(name, digest) for name, digest in digests.items())


def _unnamed(*names: str) -> tuple[File, ...]:
    return tuple(File(name) for name in names)


MNIST = _named(
    {
        "train-images-idx3-ubyte": "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    }
)
FASHION_MNIST = _named(
    {
        "train-images-idx3-ubyte": "sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    }
)
FASHION_MNIST_MINI = _unnamed(*(file.name for file in FASHION_MNIST))
EMNIST_LETTERS = _unnamed(
    "emnist-letters-train-images-idx3-ubyte",
    "emnist-letters-train-labels-idx1-ubyte",
    "emnist-letters-test-images-idx3-ubyte",
    "emnist-letters-test-labels-idx1-ubyte",
)
CIFAR10_BINARY = _named(
    {
        "data_batch_1.bin": "sha256:cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "sha256:a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "sha256:bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "sha256:014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "sha256:755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "sha256:8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    }
)
CIFAR10_PICKLE = _named(
    {
        "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
        "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
        "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "md5:40351d587109b95175f43aff81a1287e",
    }
)
CIFAR100_BINARY = _named(
    {
        "train.bin": "sha1:e207cd2e05b73b1393c74c7f5e7bea451d63e08e",
        "test.bin": "sha1:8fb6623e830365ff53cf14adec797474f5478006",
    }
)
CIFAR100_PICKLE = _named(
    {
        "train": "md5:16019d7e3df5f24257cddd939b257f8d",
        "test": "md5:f0ef6b0ae62326f3e7ffdfab6717acfc",
    }
)
IMDB_JSON = _named({"reviews.json": "sha256:325ab424eb6899870dd9294c6fe5be9265f66f8a2f63bcd941c6277cc1c17ea8"})
IMDB_FOLDERS = _unnamed("train/neg", "train/pos", "test/neg", "test/pos")
TINY_IMAGENET = _unnamed("train", "val/images", "val/val_annotations.txt")
