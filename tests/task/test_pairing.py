"""Functions of the user's that confuse outputs [n, 1] with targets [n]."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedkeel import InputError
from fedkeel.task.pairing import check_pairing

Z, Y = torch.tensor([[0.5], [1.5]]), torch.tensor([0.0, 2.0])

CONFUSED = [
    lambda z, y: ((z - y) ** 2).mean(),
    lambda z, y: (z - y).abs().mean(),
    lambda z, y: ((z > 0) == (y > 0)).float().mean(),
]
CLEAR = [
    lambda z, y: ((z.squeeze(-1) - y) ** 2).mean(),
    lambda z, y: ((z.squeeze() - y) ** 2).mean(),
    lambda z, y: (z[:, 0] - y).abs(),
    lambda z, y: functional.mse_loss(z.view_as(y), y, reduction="none"),
    lambda z, y: ((z.squeeze(-1) - y) ** 2).mean() * torch.rand(()),  # random: nothing can be said
    lambda *_: float("nan"),
]


@pytest.mark.parametrize("number", range(len(CONFUSED)))
def test_a_table_of_all_pairs_is_refused(number: int) -> None:
    told = r"loss.name: mine:loss compares every target .* outputs have shape \[2, 1\] and targets \[2\]; use"
    with pytest.raises(InputError, match=told):
        check_pairing("loss.name", "mine:loss", CONFUSED[number], Z, Y)


@pytest.mark.parametrize("number", range(len(CLEAR)))
def test_what_is_clear_is_left_alone(number: int) -> None:
    check_pairing("loss.name", "mine:loss", CLEAR[number], Z, Y)


def test_outputs_of_the_targets_shape_need_no_check() -> None:
    def never(*_: Tensor) -> Tensor:
        raise AssertionError

    check_pairing("metrics", "never", never, Z[:, 0], Y)
    check_pairing("metrics", "never", never, Z.repeat(1, 2), Y)
