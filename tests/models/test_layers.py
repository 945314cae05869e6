import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedkeel.models.layers import groups, kaiming


@given(st.integers(1, 2048))
def test_groups_divide_the_channels_and_leave_eight_in_each(channels):
    count = groups(channels)
    assert channels % count == 0
    assert count == 1 or channels // count >= 8
    finer = (n for n in range(count + 1, 33) if channels % n == 0)
    assert all(channels // n < 8 for n in finer)


def test_groups_of_the_usual_widths():
    assert [groups(channels) for channels in (4, 16, 24, 64, 512, 1024)] == [1, 2, 3, 8, 32, 32]


def test_kaiming_keeps_the_signal_through_many_layers():
    torch.manual_seed(0)
    layers = [layer for _ in range(12) for layer in (nn.Conv2d(32, 32, 3, padding=1), nn.ReLU())]
    x = torch.randn(4, 32, 12, 12)
    with torch.no_grad():
        plain = nn.Sequential(*layers)(x).std()
        kept = kaiming(nn.Sequential(*layers))(x).std()
    assert plain < 0.05 < 0.2 < kept < 2
    assert not any(layer.bias.any() for layer in layers[::2])
