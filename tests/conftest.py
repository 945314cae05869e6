"""Settings of all tests."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FEW = 10
"""Examples of a property in the fast tier; 100 are usual."""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before any test is loaded; a process that only hands tests to others needs none of it."""
    config = session.config
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        return
    from hypothesis import settings

    for number in (signal.SIGINT, signal.SIGHUP):  # background jobs of a shell ignore them, with all that they start
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    settings.register_profile("steady", deadline=None, derandomize=True)  # shared machines stall; tests never time
    settings.register_profile("few", settings.get_profile("steady"), max_examples=FEW)
    settings.load_profile("few" if config.option.markexpr == "not slow" else "steady")


@pytest.fixture(autouse=True, scope="session")
def _no_memory_of_earlier_runs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Choices of executors are kept for the tests alone."""
    from fedkeel.runner import remembered

    folder: Path = tmp_path_factory.mktemp("choices")
    remembered.cache_folder = lambda: folder  # type: ignore[assignment]


@pytest.fixture(autouse=True, scope="session")
def _no_internet() -> Iterator[None]:
    """No test reaches another machine, and no command of a test downloads anything unless the test allows for it."""
    from tests.helpers.loopback import only_loopback

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDKEEL_OFFLINE", "1")
        patch.delenv("FEDKEEL_MIRROR", raising=False)
        only_loopback(patch)
        yield


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As in a run: the tests' models are too small for more."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _modules_of_a_test_end_with_it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a test has imported from its own folder is forgotten: another test may have a module of the same name."""
    path, before = sys.path.copy(), set(sys.modules)
    yield
    sys.path[:] = path
    folder = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(folder):
            del sys.modules[name]
