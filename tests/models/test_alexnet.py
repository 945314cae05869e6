import pytest
import torch

from fedkeel.models import Inputs, build


def test_five_convolutions_krizhevsky_2012_at_cifar_size(count, trace):
    model = build("alexnet", Inputs((3, 32, 32), 10))
    seen = trace(model, torch.randn(2, 3, 32, 32))
    assert [layer for layer in seen if "ReLU" not in layer] == [
        "Conv2d 64x8x8",
        "MaxPool2d 64x4x4",
        "Conv2d 192x4x4",
        "MaxPool2d 192x2x2",
        "Conv2d 384x2x2",
        "Conv2d 256x2x2",
        "Conv2d 256x2x2",
        "MaxPool2d 256x1x1",
        "Flatten 256",
        "Linear 10",
    ]
    wide = (64 * 3 * 121 + 64) + (192 * 64 * 25 + 192)
    narrow = (384 * 192 * 9 + 384) + (256 * 384 * 9 + 256) + (256 * 256 * 9 + 256)
    assert count(model) == wide + narrow + (256 * 10 + 10) == 2_472_266


@pytest.mark.parametrize(("side", "features"), [(28, 256), (64, 4 * 256), (65, 9 * 256)])
def test_features_grow_with_the_image(side, features):
    model = build("alexnet", Inputs((3, side, side), 200))
    assert model.body(torch.randn(2, 3, side, side)).shape == (2, features)
    assert model.head.in_features == features


def test_dropout_stands_before_the_classifier(trace):
    model = build("alexnet", Inputs((3, 32, 32), 10), dropout=0.5)
    assert trace(model, torch.randn(2, 3, 32, 32))[-2:] == ["Dropout 256", "Linear 10"]
