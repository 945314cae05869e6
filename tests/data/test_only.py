"""The data of some clients alone."""

import numpy as np
import pytest
import torch

from fedkeel import FederatedData, InputError

RNG = np.random.default_rng(0)
NAMES = ("Bern", "Genf", "Zug")


def three(**how: object) -> FederatedData:
    own = [(RNG.normal(size=(n, 2)), np.arange(n) % 2) for n in (20, 30, 40)]
    return FederatedData.from_clients(own, client_names=NAMES, **how)  # type: ignore[arg-type]


def test_each_keeps_its_own_rows() -> None:
    data = three(test=0.2, validation=0.1)
    some = data.only("Zug", 0)
    assert some.client_names == ("Zug", "Bern")
    assert len(some.train) == some.sizes.sum()
    for new, old in enumerate((2, 0)):
        for mine, rows, theirs, their_rows in (
            (some.train, some.assignment, data.train, data.assignment),
            (some.test, some.test_rows, data.test, data.test_rows),
            (some.validation, some.validation_rows, data.validation, data.validation_rows),
        ):
            torch.testing.assert_close(mine.x[rows[new]], theirs.x[their_rows[old]])  # type: ignore[index, union-attr]
            assert mine.y[rows[new]].tolist() == theirs.y[their_rows[old]].tolist()  # type: ignore[index, union-attr]
    assert len(some.test) == 12
    assert len(some.validation) == 6  # type: ignore[arg-type]


def test_a_common_test_set_stays() -> None:
    data = three(test=(np.zeros((5, 2)), np.arange(5) % 2))
    assert data.only(1).test is data.test
    assert not data.only(1).clients_have_tests


@pytest.mark.parametrize(
    ("clients", "said"),
    [
        ((), "at least one client"),
        (("Basel",), "clients: 'Basel' is not the name of a client; the names are Bern, Genf, Zug"),
        ((3,), "numbers from 0 to 2; got 3"),
        ((-1,), "got -1"),
        ((True,), "got True"),
        ((1.0,), "got 1.0"),
    ],
)
def test_who_is_not_there_is_refused(clients: tuple[object, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        three().only(*clients)  # type: ignore[arg-type]
