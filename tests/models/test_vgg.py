import pytest
import torch

from fedkeel.models import Inputs, build

CIFAR100 = Inputs((3, 32, 32), 100)
# Simonyan and Zisserman's Table 1, column A
PAIRS = [(3, 64), (64, 128), (128, 256), (256, 256), (256, 512), (512, 512), (512, 512), (512, 512)]


def test_layers_and_512_features_after_the_average_pool_fedagg_section_vi_a5(trace):
    seen = trace(build("vgg11", CIFAR100, norm="none"), torch.randn(2, 3, 32, 32))
    assert [layer for layer in seen if "ReLU" not in layer] == [
        "Conv2d 64x32x32",
        "MaxPool2d 64x16x16",
        "Conv2d 128x16x16",
        "MaxPool2d 128x8x8",
        "Conv2d 256x8x8",
        "Conv2d 256x8x8",
        "MaxPool2d 256x4x4",
        "Conv2d 512x4x4",
        "Conv2d 512x4x4",
        "MaxPool2d 512x2x2",
        "Conv2d 512x2x2",
        "Conv2d 512x2x2",
        "MaxPool2d 512x1x1",
        "AdaptiveAvgPool2d 512x1x1",
        "Flatten 512",
        "Linear 100",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "extras"), [("batch", 2), ("group", 2), ("none", 1)])
def test_a_norm_adds_two_weights_a_channel_and_takes_the_bias(count, norm, extras):
    expected = sum(9 * before * after + extras * after for before, after in PAIRS) + (512 * 100 + 100)
    assert count(build("vgg11", CIFAR100, norm=norm)) == expected


def test_28_pixels_last_through_five_halvings(trace):
    seen = trace(build("vgg11", Inputs((1, 28, 28), 10)), torch.randn(2, 1, 28, 28))
    assert [layer for layer in seen if "MaxPool" in layer] == [
        "MaxPool2d 64x14x14",
        "MaxPool2d 128x7x7",
        "MaxPool2d 256x4x4",
        "MaxPool2d 512x2x2",
        "MaxPool2d 512x1x1",
    ]
