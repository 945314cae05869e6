from __future__ import annotations

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.image import imread

from fedkeel.report.heatmap import _draw, label_heatmap

COUNTS = np.array([[0, 5], [3, 0], [2, 2]])


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "classes"), [(5, 2), (100, 10), (1000, 200)])
def test_a_png_of_readable_size_is_written(tmp_path, clients, classes):
    label_heatmap(np.random.default_rng(0).integers(0, 9, (clients, classes)), tmp_path / "labels.png")
    height, width, _ = imread(tmp_path / "labels.png").shape
    assert 900 <= width <= 2100
    assert 450 <= height <= 1350
    assert width >= clients
    assert height >= 5 * classes


def test_labels_go_upwards_and_clients_to_the_right():
    axes = _draw(COUNTS, "a title").axes[0]
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("a title", "client", "label")
    image = axes.images[0]
    assert image.get_array().tolist() == COUNTS.T.tolist()
    assert image.get_extent() == [-0.5, 2.5, -0.5, 1.5]


def test_the_colour_bar_counts_samples_and_none_is_white():
    axes, bar = _draw(COUNTS, "").axes
    assert bar.get_ylabel() == "samples"
    image = axes.images[0]
    assert image.to_rgba(0) == (1, 1, 1, 1)
    assert image.to_rgba(1) != (1, 1, 1, 1)
    assert image.get_clim() == (1, 5)


@pytest.mark.slow
@pytest.mark.parametrize("counts", [np.zeros((3, 2), dtype=int), np.ones((1, 1), dtype=int)])
def test_nothing_to_tell_apart_is_drawn_too(tmp_path, counts):
    label_heatmap(counts, tmp_path / "labels.png")
    assert (tmp_path / "labels.png").stat().st_size > 0


def test_only_the_first_thousand_clients_are_shown_and_the_axis_says_so():
    axes = _draw(np.ones((1500, 3), dtype=int), "").axes[0]
    assert axes.images[0].get_array().shape == (3, 1000)
    assert axes.get_xlabel() == "client (the first 1,000 of 1,500)"


@pytest.mark.parametrize("clients", [1, 5, 20, 100, 1000])
def test_ticks_are_whole_numbers_and_few(clients):
    axes = _draw(np.ones((clients, 3), dtype=int), "").axes[0]
    ticks = [tick for tick in axes.get_xticks() if -0.5 <= tick <= clients - 0.5]
    assert all(float(tick).is_integer() for tick in ticks)
    assert min(clients, 5) <= len(ticks) <= 21


@pytest.mark.slow
def test_pyplot_has_no_figure_left_open(tmp_path):
    label_heatmap(COUNTS, tmp_path / "labels.png")
    assert pyplot.get_fignums() == []
