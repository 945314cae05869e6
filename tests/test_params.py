import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedkeel.errors import InputError
from fedkeel.params import FlatModel, Layout


class Net(nn.Module):
    def __init__(self, width: int = 3, norm: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(2, width)
        self.norm = nn.BatchNorm1d(width) if norm else nn.Identity()
        self.last = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x)))


@given(width=st.integers(1, 7), lead=st.lists(st.integers(1, 3), max_size=2), seed=st.integers(0, 99))
def test_views_and_flatten_are_inverse_with_any_leading_axes(width: int, lead: list[int], seed: int) -> None:
    layout = Layout.of(Net(width))
    w = torch.randn(*lead, layout.size, generator=torch.Generator().manual_seed(seed))
    views = layout.views(w)
    assert views["last.weight"].shape == (*lead, 4, width)
    assert torch.equal(layout.flatten(views), w)


def test_parameters_and_buffers_are_kept_apart() -> None:
    layout = Layout.of(Net(3))
    assert [p.name for p in layout.parameters] == [
        "first.weight", "first.bias", "norm.weight", "norm.bias", "last.weight", "last.bias",
    ]  # fmt: skip
    assert [b.name for b in layout.buffers] == ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    assert layout.size == 6 + 3 + 3 + 3 + 12 + 4
    assert layout.buffers[-1].stop == 3 + 3 + 1
    assert layout.buffer_bytes == 4 * (3 + 3) + 8


def test_layers_cover_the_vector_in_order() -> None:
    layout = Layout.of(Net(3))
    assert list(layout.layers) == ["first", "norm", "last"]
    covered = [i for s in layout.layers.values() for i in range(s.start, s.stop)]
    assert covered == list(range(layout.size))


def test_head_is_the_last_layer_unless_the_model_names_one() -> None:
    layout = Layout.of(Net(3))
    assert layout.head_names == {"last.weight", "last.bias"}
    assert int(layout.head.sum()) == 16
    assert layout.head[-16:].all()
    model = nn.ModuleDict({"head": nn.Linear(2, 2), "tail": nn.Linear(2, 2)})
    model.head = model["head"]
    assert Layout.of(model).head_names == {"head.weight", "head.bias"}


def test_frozen_parameters_are_constants() -> None:
    net = Net(3)
    net.first.requires_grad_(False)
    assert next(p.name for p in Layout.of(net).parameters) == "norm.weight"
    net.requires_grad_(False)
    with pytest.raises(InputError, match="must have at least one trainable parameter; set requires_grad=True"):
        Layout.of(net)


def test_flat_model_computes_with_the_loaded_vector() -> None:
    torch.manual_seed(0)
    plain, flat = Net(3).eval(), FlatModel(Net(3).eval())
    w = torch.cat([p.detach().reshape(-1) for p in plain.parameters()])
    x = torch.randn(5, 2)
    assert not torch.allclose(flat.module(x), plain(x))
    flat.load(w)
    assert torch.equal(flat.module(x), plain(x))
    flat.w.zero_()  # the parameters are views of it
    assert not flat.module(x).any()


def test_buffers_travel_as_one_vector_and_integers_are_rounded() -> None:
    flat = FlatModel(Net(2))
    flat.load(flat.w, torch.tensor([1.0, 2.0, 3.0, 4.0, 6.6]))
    norm = flat.module.get_submodule("norm")
    assert norm.running_mean.tolist() == [1, 2]
    assert norm.num_batches_tracked.item() == 7
    assert norm.num_batches_tracked.dtype == torch.int64
    assert flat.buffers.tolist() == [1, 2, 3, 4, 7]
    assert FlatModel(Net(2, norm=False)).buffers.shape == (0,)


def test_a_buffer_that_the_module_replaces_is_still_read_and_written() -> None:
    net = Net(2)
    flat = FlatModel(net)
    net.norm.running_mean = net.norm.running_mean + 5
    assert flat.buffers[:2].tolist() == [5, 5]
    flat.load(flat.w, torch.tensor([1.0, 2.0, 3.0, 4.0, 0.0]))
    assert net.norm.running_mean.tolist() == [1, 2]


def test_released_parameters_own_their_memory() -> None:
    flat = FlatModel(Net(2))
    net = flat.release()
    before = flat.w.clone()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(1)
    assert torch.equal(flat.w, before)
    assert len({p.untyped_storage().data_ptr() for p in net.parameters()}) == len(list(net.parameters()))
