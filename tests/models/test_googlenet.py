import torch
from torch.nn import functional as F  # noqa: N812

from fedkeel.models import Inputs, build
from fedkeel.models.googlenet import Inception

# before, 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection: Szegedy et al. (2015), Table 1
TABLE_1 = [
    (192, 64, 96, 128, 16, 32, 32),
    (256, 128, 128, 192, 32, 96, 64),
    (480, 192, 96, 208, 16, 48, 64),
    (512, 160, 112, 224, 24, 64, 64),
    (512, 128, 128, 256, 24, 64, 64),
    (512, 112, 144, 288, 32, 64, 64),
    (528, 256, 160, 320, 32, 128, 128),
    (832, 256, 160, 320, 32, 128, 128),
    (832, 384, 192, 384, 48, 128, 128),
]


def convolution(before, after, kernel):
    """Weights of a convolution without bias and of the batch norm behind it."""
    return kernel**2 * before * after + 2 * after


def inception(before, one, reduce3, three, reduce5, five, pool):
    wide = convolution(before, reduce5, 1) + convolution(reduce5, five, 3) + convolution(five, five, 3)
    middle = convolution(before, reduce3, 1) + convolution(reduce3, three, 3)
    return convolution(before, one, 1) + middle + wide + convolution(before, pool, 1)


def test_weights_of_nine_inception_modules(count):
    expected = convolution(3, 192, 3) + sum(inception(*row) for row in TABLE_1) + (1024 * 10 + 10)
    assert count(build("googlenet", Inputs((3, 32, 32), 10))) == expected


def test_the_stem_keeps_the_size_and_two_pools_halve_it():
    body = build("googlenet", Inputs((3, 32, 32), 10)).eval().body
    sizes = []
    x = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        for layer in body:
            x = layer(x)
            sizes.append(tuple(x.shape[1:]))
    joined = [(row[1] + row[3] + row[5] + row[6]) for row in TABLE_1]
    stem = [(192, 32, 32)] * 3
    first = [(channels, 32, 32) for channels in joined[:2]] + [(480, 16, 16)]
    second = [(channels, 16, 16) for channels in joined[2:7]] + [(832, 8, 8)]
    third = [(channels, 8, 8) for channels in joined[7:]]
    assert sizes == [*stem, *first, *second, *third, (1024, 1, 1), (1024,)]


def test_four_branches_are_joined_szegedy_2015_figure_2b():
    module = Inception(5, (2, 3, 4, 6, 7, 8), "none")
    x = torch.randn(2, 5, 6, 6)
    one, reduce3, three, reduce5, five, five_again, project = (
        layer for layer in module.modules() if isinstance(layer, torch.nn.Conv2d)
    )
    expected = [
        F.relu(one(x)),
        F.relu(three(F.relu(reduce3(x)))),
        F.relu(five_again(F.relu(five(F.relu(reduce5(x)))))),
        F.relu(project(F.max_pool2d(x, 3, stride=1, padding=1))),
    ]
    torch.testing.assert_close(module(x), torch.cat(expected, dim=1))
