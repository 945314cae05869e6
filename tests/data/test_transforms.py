import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkeel.data.transforms import crop_flip, random_crop_flip, resize


def cropped_one_by_one(x, top, left, mirrored, padding):
    images = []
    for image, row, column, mirror in zip(x, top.tolist(), left.tolist(), mirrored.tolist(), strict=True):
        channels, height, width = image.shape
        framed = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=image.dtype)
        framed[:, padding : padding + height, padding : padding + width] = image
        cut = framed[:, row : row + height, column : column + width]
        images.append(torch.stack([cut[:, :, width - 1 - c] for c in range(width)], 2) if mirror else cut)
    return torch.stack(images)


@given(
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(2, 7),
    st.integers(2, 7),
    st.integers(0, 4),
    st.integers(),
)
def test_crop_flip_equals_a_loop_over_images(n, channels, height, width, padding, seed):
    generator = torch.Generator().manual_seed(seed % 2**31)
    x = torch.randn(n, channels, height, width, generator=generator)
    top, left = torch.randint(0, 2 * padding + 1, (2, n), generator=generator)
    mirrored = torch.rand(n, generator=generator) < 0.5
    expected = cropped_one_by_one(x, top, left, mirrored, padding)
    assert torch.equal(crop_flip(x, top, left, mirrored, padding), expected)


def test_no_offset_and_no_mirror_give_the_image_back():
    x = torch.randn(3, 2, 5, 5)
    centre = torch.full((3,), 4)
    assert torch.equal(crop_flip(x, centre, centre, torch.zeros(3, dtype=torch.bool)), x)


def test_random_crop_flip_draws_every_offset_and_both_mirrors_for_each_image_apart():
    n, padding = 4000, 2
    x = torch.arange(1.0, 50.0).reshape(1, 1, 7, 7).repeat(n, 1, 1, 1)
    out = random_crop_flip(x, torch.Generator().manual_seed(0), padding)
    middle = x[0, 0, 3, 3]
    places = (out == middle).nonzero()  # the middle pixel never leaves the crop
    assert len(places) == n
    rows, columns = places[:, 2], places[:, 3]
    counts = torch.stack([((rows == r) & (columns == c)).sum() for r in range(1, 6) for c in range(1, 6)])
    assert counts.min() > n / 25 * 0.6
    assert counts.max() < n / 25 * 1.4
    right_of_middle = out[torch.arange(n), 0, rows, columns + 1]
    assert (right_of_middle < middle).float().mean().item() == pytest.approx(0.5, abs=0.04)


def test_random_crop_flip_is_a_function_of_its_generator():
    x = torch.randn(16, 3, 8, 8)
    first, again = (random_crop_flip(x, torch.Generator().manual_seed(5)) for _ in range(2))
    other = random_crop_flip(x, torch.Generator().manual_seed(6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_random_crop_flip_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    random_crop_flip(torch.randn(2, 1, 4, 4, generator=torch.Generator()), torch.Generator())
    assert torch.equal(torch.get_rng_state(), before)


def test_resize_doubles_by_the_bilinear_formula():
    x = torch.tensor([0.0, 4.0]).reshape(1, 1, 1, 2).expand(1, 1, 2, 2)
    row = torch.tensor([0.0, 1.0, 3.0, 4.0])  # pixel centres at -1/4, 1/4, 3/4, 5/4 of the old grid
    assert torch.allclose(resize(x, 4), row.expand(1, 1, 4, 4))


def test_resize_to_the_same_size_changes_nothing():
    x = torch.randn(2, 3, 6, 6)
    assert torch.allclose(resize(x, 6), x, atol=1e-6)
