# SPDX-License-Identifier: Apache-2.0
"""Which errors of daemon threads are not printed while the program ends."""

import pytest

from horovod.common.exceptions import HorovodMismatchError
from horovod.common.threads_at_exit import came_of_leaving

# Messages of framework operations after the world has ended. Python receives only the text.
OF_LEAVING = [
    "Horovod has been shut down. Rank 1 finished while rank 0 still calls 'a'.",
    "HorovodAllreduce: Horovod has not been initialized; call hvd.init() first",
    "Horovod: 'a' runs while Horovod is not initialized, or its process set is not registered any more",
    "HorovodAllreduce: its process set is not registered, or this rank is not a member of it: pass the set",
]


@pytest.mark.parametrize("text", OF_LEAVING)
def test_an_error_that_comes_of_leaving_is_known_by_its_text(text):
    assert came_of_leaving(RuntimeError(text))


def test_an_error_that_followed_from_it_is_known_too():
    error = ValueError("no batch")
    error.__cause__ = RuntimeError(OF_LEAVING[0])
    assert came_of_leaving(error)


@pytest.mark.parametrize(
    "error", [RuntimeError("out of memory"), ValueError("process sets"), HorovodMismatchError(OF_LEAVING[0])]
)
def test_other_errors_are_printed(error):
    assert not came_of_leaving(error)
