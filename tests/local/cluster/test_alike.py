"""What is compared among machines, so that results do not depend on who trains what."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fedkeel.local.cluster import alike
from fedkeel.local.native import library


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    alike.facts.cache_clear()
    yield
    alike.facts.cache_clear()


def test_what_a_program_has_set_in_pytorch_is_not_the_machines() -> None:
    """Nor does the comparison change any of it."""
    plain = alike.facts()
    assert plain["kernels"].keys() == {*library.usable()}
    alike.facts.cache_clear()
    precision, threads, state = torch.get_float32_matmul_precision(), torch.get_num_threads(), torch.get_rng_state()
    try:
        torch.set_float32_matmul_precision("medium")
        torch.set_num_threads(2)
        with torch.inference_mode():
            assert alike.facts() == plain
            assert torch.is_inference_mode_enabled()
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.get_num_threads() == 2
        assert torch.equal(torch.get_rng_state(), state)
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(threads)


def test_a_machine_like_this_one() -> None:
    assert alike.objection("b", alike.facts()) is None


@pytest.mark.skipif(library.load() is None, reason="there are no native kernels here")
def test_kernels_of_another_compiler() -> None:
    mine = alike.facts()
    loaded = library.load()
    assert loaded is not None
    others = {**mine, "kernels": {**mine["kernels"], loaded.isa: "12345678"}}
    assert alike.objection("b", others) == (
        "the native kernels of the machine b of the cluster round otherwise than those of this one, as by another "
        "compiler; install the same wheel of fedkeel on all machines, or set FEDKEEL_NATIVE=no"
    )


def test_without_kernels_only_pytorch_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDKEEL_NATIVE", "no")
    mine = alike.facts()
    assert alike.objection("b", {**mine, "kernels": {}}) is None
    assert "PyTorch rounds otherwise on the machine b" in str(alike.objection("b", {**mine, "bits": "other"}))
