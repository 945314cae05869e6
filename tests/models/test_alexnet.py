import pytest
import torch

from fedkeel.errors import InputError
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


def test_two_hidden_layers_krizhevsky_2012_where_they_are_asked_for(count, trace):
    model = build("alexnet", Inputs((3, 32, 32), 10), hidden=4096, dropout=0.5)
    assert trace(model, torch.randn(2, 3, 32, 32))[-8:] == [
        "Flatten 256",
        "Linear 4096",
        "ReLU 4096",
        "Dropout 4096",
        "Linear 4096",
        "ReLU 4096",
        "Dropout 4096",
        "Linear 10",
    ]
    convolutions = (
        (64 * 3 * 11 * 11 + 64)
        + (192 * 64 * 5 * 5 + 192)
        + (384 * 192 * 3 * 3 + 384)
        + (256 * 384 * 3 * 3 + 256)
        + (256 * 256 * 3 * 3 + 256)
    )
    dense = (256 * 4096 + 4096) + (4096 * 4096 + 4096) + (4096 * 10 + 10)
    assert count(model) == convolutions + dense == 20_344_650


def test_hidden_layers_fit_larger_images_and_are_not_there_by_default():
    model = build("alexnet", Inputs((3, 64, 64), 200), hidden=8)
    linear = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    assert [tuple(layer.weight.shape) for layer in linear] == [(8, 4 * 256), (8, 8), (200, 8)]
    assert model.head is linear[-1]
    assert model(torch.randn(2, 3, 64, 64)).shape == (2, 200)


@pytest.mark.parametrize("value", [0, -1, 2.5, "many", True, 1_000_001])
def test_a_wrong_number_of_hidden_units_is_refused(value):
    with pytest.raises(InputError, match=r"model\.hidden must be a whole number from 1 to 1,000,000, or null; got "):
        build("alexnet", Inputs((3, 32, 32), 10), hidden=value)
