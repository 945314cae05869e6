import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from fedkeel.models import Inputs, build
from fedkeel.models.resnet import Block, Widen

CIFAR10 = Inputs((3, 32, 32), 10)


def convolution(before, after, kernel=3):
    """Weights of a convolution without bias and of the batch norm behind it."""
    return kernel**2 * before * after + 2 * after


def test_resnet20_has_he_et_al_s_0_27_million_weights(count):
    stages = [convolution(16, 16) * 6]
    stages += [convolution(before, 2 * before) + 5 * convolution(2 * before, 2 * before) for before in (16, 32)]
    assert count(build("resnet20", CIFAR10)) == convolution(3, 16) + sum(stages) + (64 * 10 + 10) == 269_722


def test_resnet20_has_twenty_layers_with_weights_and_three_sizes(trace):
    seen = trace(build("resnet20", CIFAR10), torch.randn(2, 3, 32, 32))
    sizes = ["Conv2d 16x32x32"] * 7 + ["Conv2d 32x16x16"] * 6 + ["Conv2d 64x8x8"] * 6 + ["Linear 10"]
    assert [layer for layer in seen if layer.startswith(("Conv2d", "Linear"))] == sizes


def test_resnet18_on_cifar(count):
    stages = [convolution(64, 64) * 4]
    for before in (64, 128, 256):
        after = 2 * before
        stages.append(convolution(before, after) + 3 * convolution(after, after) + convolution(before, after, kernel=1))
    expected = convolution(3, 64) + sum(stages) + (512 * 10 + 10)
    assert count(build("resnet18", CIFAR10)) == expected == 11_173_962


def test_resnet18_halves_three_times_only(trace):
    seen = trace(build("resnet18", CIFAR10), torch.randn(1, 3, 32, 32))
    assert seen[0] == "Conv2d 64x32x32"
    assert seen[-3:] == ["AdaptiveAvgPool2d 512x1x1", "Flatten 512", "Linear 10"]
    assert "Conv2d 512x4x4" in seen


def test_a_block_adds_its_shortcut_before_the_last_relu():
    block = Block(4, 4, "none", nn.Identity())
    x = torch.randn(2, 4, 5, 5)
    first, _, second = block.branch
    torch.testing.assert_close(block(x), F.relu(x + second(F.relu(first(x)))))


def test_option_a_takes_every_second_pixel_and_adds_zero_channels():
    x = torch.randn(2, 3, 5, 5)
    y = Widen(3)(x)
    assert y.shape == (2, 6, 3, 3)
    assert torch.equal(y[:, :3], x[:, :, [0, 2, 4]][:, :, :, [0, 2, 4]])
    assert not y[:, 3:].any()


def test_without_a_norm_the_signal_keeps_its_scale():
    torch.manual_seed(0)
    model = build("resnet18", CIFAR10, norm="none").eval()
    with torch.no_grad():
        stem = model.body[:2](torch.randn(4, 3, 32, 32))
        last = model.body[2:-2](stem)
    assert 0.3 < last.square().mean() / stem.square().mean() < 6
