import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeel.models import Inputs, build

MNIST = Inputs((1, 28, 28), 10)
LETTERS = Inputs((1, 28, 28), 26)
CIFAR10 = Inputs((3, 32, 32), 10)


def test_linear_is_softmax_regression(count):
    model = build("linear", MNIST)
    x = torch.randn(3, 1, 28, 28)
    torch.testing.assert_close(model(x), x.reshape(3, 784) @ model.head.weight.T + model.head.bias)
    assert count(model) == 784 * 10 + 10


def test_mlp_400_is_two_layers_fedlga_section_vi_a(count):
    model = build("mlp-400", MNIST)
    x = torch.randn(3, 1, 28, 28)
    hidden = model.body[1]
    expected = (x.reshape(3, 784) @ hidden.weight.T + hidden.bias).clamp(min=0)
    torch.testing.assert_close(model.body(x), expected)
    assert count(model) == (784 * 400 + 400) + (400 * 10 + 10)


def test_mnist_cnn_fedagg_section_vi_a5(count, trace):
    model = build("mnist-cnn", MNIST)
    assert trace(model, torch.randn(2, 1, 28, 28)) == [
        "Conv2d 32x28x28",
        "MaxPool2d 32x14x14",
        "ReLU 32x14x14",
        "Conv2d 64x14x14",
        "MaxPool2d 64x7x7",
        "ReLU 64x7x7",
        "Flatten 3136",
        "Linear 512",
        "ReLU 512",
        "Linear 10",
    ]
    # 1,663,370, the count that McMahan et al. (2017) give for their CNN
    convolutions = (32 * 25 + 32) + (64 * 32 * 25 + 64)
    assert count(model) == convolutions + (7 * 7 * 64 * 512 + 512) + (512 * 10 + 10) == 1_663_370


def test_mnist_cnn_with_dropout_before_each_fully_connected_layer_fedent_section_6_1_2(trace):
    model = build("mnist-cnn", MNIST, dropout=0.5)
    assert trace(model, torch.randn(2, 1, 28, 28))[-6:] == [
        "Flatten 3136",
        "Dropout 3136",
        "Linear 512",
        "ReLU 512",
        "Dropout 512",
        "Linear 10",
    ]


def test_lenet5_on_28_pixels_lecun_1998(count, trace):
    model = build("lenet5", MNIST)
    assert trace(model, torch.randn(2, 1, 28, 28)) == [
        "Conv2d 6x28x28",
        "MaxPool2d 6x14x14",
        "ReLU 6x14x14",
        "Conv2d 16x10x10",
        "MaxPool2d 16x5x5",
        "ReLU 16x5x5",
        "Flatten 400",
        "Linear 120",
        "ReLU 120",
        "Linear 84",
        "ReLU 84",
        "Linear 10",
    ]
    convolutions = (6 * 25 + 6) + (16 * 6 * 25 + 16)
    assert count(model) == convolutions + (400 * 120 + 120) + (120 * 84 + 84) + (84 * 10 + 10) == 61_706


def test_lenet5_on_32_pixels_needs_no_padding(count, trace):
    model = build("lenet5", CIFAR10)
    assert trace(model, torch.randn(2, 3, 32, 32))[:6:5] == ["Conv2d 6x28x28", "ReLU 16x5x5"]
    convolutions = (6 * 3 * 25 + 6) + (16 * 6 * 25 + 16)
    assert count(model) == convolutions + (400 * 120 + 120) + (120 * 84 + 84) + (84 * 10 + 10)


def test_lenet5_wide_has_5x5x32_120_84_and_26_units_fedagg_section_vi_a5(count, trace):
    model = build("lenet5-wide", LETTERS)
    seen = trace(model, torch.randn(2, 1, 28, 28))
    assert [layer for layer in seen if "ReLU" not in layer] == [
        "Conv2d 16x28x28",
        "MaxPool2d 16x14x14",
        "Conv2d 32x10x10",
        "MaxPool2d 32x5x5",
        "Flatten 800",
        "Linear 120",
        "Linear 84",
        "Linear 26",
    ]
    convolutions = (16 * 25 + 16) + (32 * 16 * 25 + 32)
    assert count(model) == convolutions + (5 * 5 * 32 * 120 + 120) + (120 * 84 + 84) + (84 * 26 + 26)


def test_cifar10_cnn_fedagg_section_vi_a5_and_fedent_section_6_1_2(count, trace):
    model = build("cifar10-cnn", CIFAR10)
    seen = trace(model, torch.randn(2, 3, 32, 32))
    assert [layer for layer in seen if "ReLU" not in layer] == [
        "Conv2d 16x32x32",
        "MaxPool2d 16x16x16",
        "Conv2d 32x16x16",
        "MaxPool2d 32x8x8",
        "Conv2d 64x8x8",
        "MaxPool2d 64x4x4",
        "Flatten 1024",
        "Dropout 1024",
        "Linear 512",
        "Dropout 512",
        "Linear 10",
    ]
    convolutions = (16 * 3 * 9 + 16) + (32 * 16 * 9 + 32) + (64 * 32 * 9 + 64)
    assert count(model) == convolutions + (4 * 4 * 64 * 512 + 512) + (512 * 10 + 10)


def test_cnn_fedasmu_table_2(count, trace):
    model = build("cnn", CIFAR10)
    assert trace(model, torch.randn(2, 3, 32, 32)) == [
        "Conv2d 64x31x31",
        "ReLU 64x31x31",
        "Conv2d 32x30x30",
        "ReLU 32x30x30",
        "Flatten 28800",
        "Linear 10",
    ]
    assert count(model) == (64 * 3 * 4 + 64) + (32 * 64 * 4 + 32) + (32 * 30 * 30 * 10 + 10)


@pytest.mark.parametrize("name", ["linear", "mlp-400"])
def test_models_without_convolutions_take_any_shape(name):
    assert build(name, Inputs((7,), 3))(torch.randn(2, 7)).shape == (2, 3)


@settings(max_examples=20)
@given(st.integers(12, 40), st.integers(12, 40), st.sampled_from(["mnist-cnn", "lenet5", "cifar10-cnn", "cnn"]))
def test_convolutions_fit_any_image_that_is_large_enough(height, width, name):
    model = build(name, Inputs((2, height, width), 3))
    assert model(torch.randn(2, 2, height, width)).shape == (2, 3)
