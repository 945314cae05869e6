import torch

from fedkeel.models import Inputs, build

CIFAR10 = Inputs((3, 32, 32), 10)


def test_weights_of_121_layers(count):
    expected, width = 3 * 9 * 64, 64
    for block, depth in enumerate((6, 12, 24, 16)):
        if block:  # transition: norm and a 1x1 convolution to half the channels
            expected, width = expected + 2 * width + width * (width // 2), width // 2
        for _ in range(depth):  # norm, 1x1 to 128, norm, 3x3 to 32 new channels
            expected += 2 * width + width * 128 + 2 * 128 + 128 * 9 * 32
            width += 32
    expected += 2 * width + (width * 10 + 10)
    assert width == 1024
    assert count(build("densenet121", CIFAR10)) == expected == 6_956_298


def test_121_layers_with_weights_and_four_sizes(trace):
    seen = trace(build("densenet121", CIFAR10), torch.randn(1, 3, 32, 32))
    assert sum(layer.startswith(("Conv2d", "Linear")) for layer in seen) == 121
    assert [layer for layer in seen if "AvgPool2d" in layer] == [
        "AvgPool2d 128x16x16",
        "AvgPool2d 256x8x8",
        "AvgPool2d 512x4x4",
        "AdaptiveAvgPool2d 1024x1x1",
    ]


def test_a_dense_layer_keeps_what_came_before():
    dense = build("densenet121", CIFAR10).eval().body[1]
    x = torch.randn(1, 64, 4, 4)
    y = dense(x)
    assert y.shape == (1, 96, 4, 4)
    assert torch.equal(y[:, :64], x)
    assert torch.equal(y[:, 64:], dense.grow(x))
