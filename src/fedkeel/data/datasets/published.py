"""The data sets' files as they are published, and the addresses that have them.

Sizes and checksums are those that other libraries verify: the sha256 are those of TensorFlow Datasets (its
`url_checksums`), the md5 are torchvision's (CIFAR pickles), the publisher's own (CIFAR-100 binary), or the one that the
loaders of Tiny-ImageNet agree on. Every file has one, so no mirror needs to be trusted.
"""

from __future__ import annotations

from fedkeel.data.datasets import layouts
from fedkeel.data.sources.download import Published
from fedkeel.data.sources.mirrors import Mirrored

_TORONTO = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
_PADDLE = "https://dataset.bj.bcebos.com/"

MNIST = Mirrored(
    layouts.MNIST,
    (
        Published(
            "train-images-idx3-ubyte.gz",
            9_912_422,
            "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        Published(
            "train-labels-idx1-ubyte.gz",
            28_881,
            "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        Published(
            "t10k-images-idx3-ubyte.gz",
            1_648_877,
            "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        Published(
            "t10k-labels-idx1-ubyte.gz",
            4_542,
            "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
)
FASHION_MNIST = Mirrored(
    layouts.FASHION_MNIST,
    (
        Published(
            "train-images-idx3-ubyte.gz",
            26_421_880,
            "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        ),
        Published(
            "train-labels-idx1-ubyte.gz",
            29_515,
            "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        ),
        Published(
            "t10k-images-idx3-ubyte.gz",
            4_422_102,
            "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        ),
        Published(
            "t10k-labels-idx1-ubyte.gz",
            5_148,
            "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
    (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
)
EMNIST_LETTERS = Mirrored(
    layouts.EMNIST_LETTERS,
    (Published("gzip.zip", 561_753_746, "sha256:fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e"),),
    ("https://biometrics.nist.gov/cs_links/EMNIST/", "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/"),
)
CIFAR10 = (
    Mirrored(
        layouts.CIFAR10[0],
        (
            Published(
                "cifar-10-binary.tar.gz",
                170_052_171,
                "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
        _TORONTO,
    ),
    Mirrored(
        layouts.CIFAR10[1],
        (Published("cifar-10-python.tar.gz", 170_498_071, "md5:c58f30108f718f92721af3b95e74349a"),),
        (*_TORONTO, f"{_PADDLE}cifar/"),
    ),
)
CIFAR100 = (
    Mirrored(
        layouts.CIFAR100[0],
        (Published("cifar-100-binary.tar.gz", 168_513_733, "md5:03b5dce01913d631647c71ecec9e9cb8"),),
        _TORONTO,
    ),
    Mirrored(
        layouts.CIFAR100[1],
        (Published("cifar-100-python.tar.gz", 169_001_437, "md5:eb9058c3a382ffc7106e4002c42a8d85"),),
        (*_TORONTO, f"{_PADDLE}cifar/"),
    ),
)
TINY_IMAGENET = Mirrored(
    layouts.TINY_IMAGENET,
    (Published("tiny-imagenet-200.zip", 248_100_043, "md5:90528d7ca1a48142e341f4ef8d21d0de"),),
    ("http://cs231n.stanford.edu/", "https://zenodo.org/records/10720917/files/"),
)
IMDB = Mirrored(
    layouts.IMDB[1],
    (
        Published(
            "aclImdb_v1.tar.gz",
            84_125_825,
            "sha256:c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
        ),
    ),
    ("https://ai.stanford.edu/~amaas/data/sentiment/", f"{_PADDLE}imdb%2F"),
)
