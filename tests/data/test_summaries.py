"""Federated statistics against those of all rows together."""

import numpy as np
import pytest

from fedkeel.data import summaries
from fedkeel.data.summaries import combine, medians, summarise


def silos(seed: int, sizes: list[int], columns: int = 4, missing: float = 0.2) -> list[np.ndarray]:
    """Clients whose columns differ in place and spread, with gaps."""
    rng = np.random.default_rng(seed)
    parts = []
    for size in sizes:
        rows = rng.normal(rng.normal(0, 100), rng.uniform(0.1, 10), (size, columns))
        rows[rng.random(rows.shape) < missing] = np.nan
        parts.append(rows)
    return parts


@pytest.mark.parametrize("sizes", [[5], [40, 1, 7], [3, 3, 3, 90], [10, 0, 12]])
def test_combined_summaries_are_those_of_all_rows(sizes):
    parts = silos(sum(sizes), sizes)
    pooled = np.concatenate(parts)
    found = combine([summarise(part) for part in parts])
    assert found.count.tolist() == (~np.isnan(pooled)).sum(axis=0).tolist()
    np.testing.assert_allclose(found.mean, np.nanmean(pooled, axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.std, np.nanstd(pooled, axis=0), rtol=1e-12)
    assert found.low.tolist() == np.nanmin(pooled, axis=0).tolist()
    assert found.high.tolist() == np.nanmax(pooled, axis=0).tolist()


def test_small_deviations_from_a_large_mean_are_kept():
    parts = [1e9 + np.array([[0.0], [1.0]]), 1e9 + np.array([[2.0], [3.0], [4.0]])]
    found = combine([summarise(part) for part in parts])
    assert found.std[0] == pytest.approx(np.std([0, 1, 2, 3, 4]), rel=1e-9)


def test_a_column_that_one_client_lacks_is_the_others():
    parts = [np.array([[np.nan, 1.0]]), np.array([[4.0, 3.0], [6.0, np.nan]])]
    found = combine([summarise(part) for part in parts])
    assert found.mean.tolist() == [5.0, 2.0]
    assert (found.low.tolist(), found.high.tolist()) == ([4.0, 1.0], [6.0, 3.0])


def test_a_column_that_nobody_has_is_nan():
    found = combine([summarise(np.full((2, 1), np.nan)), summarise(np.full((3, 1), np.nan))])
    assert found.count.tolist() == [0]
    assert np.isnan([found.mean[0], found.std[0], found.low[0], found.high[0]]).all()
    assert np.isnan(medians([np.full((2, 1), np.nan)], found.count)).all()


def test_categories_are_united():
    nothing = np.empty((2, 0))
    found = combine(
        [summarise(nothing, {"sex": ["f", "m"], "ward": ["a", "a"]}), summarise(nothing, {"sex": ["d", "f"]})]
    )
    assert found.categories == {"sex": {"d", "f", "m"}, "ward": {"a"}}


@pytest.mark.parametrize("sizes", [[1], [6], [7], [4, 9, 1], [10, 0, 12, 3]])
def test_medians_are_exact(sizes):
    parts = silos(len(sizes), sizes, missing=0.1 if sum(sizes) > 5 else 0)
    pooled = np.concatenate(parts)
    count = combine([summarise(part) for part in parts]).count
    assert medians(parts, count) == pytest.approx(np.nanmedian(pooled, axis=0), rel=1e-15)


@pytest.mark.parametrize(
    "values",
    [[-0.0, 0.0, 0.0], [-5, -3, -3, 2], [1e-310, -1e308, 1e308], [7, 7, 7, 7], [-1.5, -1.25], [0.1, 0.2, 0.3, 0.4]],
)
def test_medians_of_awkward_values(values):
    parts = [np.array(values[:1])[:, None], np.array(values[1:])[:, None]]
    assert medians(parts, np.array([len(values)]))[0] == np.median(np.array(values, float))


def test_a_client_answers_with_counts_alone():
    rows = np.array([[1.0], [2.0], [np.nan], [-1.0]])
    counts = summaries.digit_counts(rows, np.zeros(1, np.uint64), 0)
    assert counts.shape == (1, 256)
    assert counts.sum() == 3
