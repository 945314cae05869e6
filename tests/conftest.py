"""Settings of all tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True)  # shared machines stall; tests never time
settings.load_profile("steady")


@pytest.fixture(autouse=True, scope="session")
def _no_memory_of_earlier_runs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Choices of executors are kept for the tests alone."""
    from fedkeel.local.executors import remember

    folder: Path = tmp_path_factory.mktemp("choices")
    remember.cache_folder = lambda: folder  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As in a run: the tests' models are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
