# SPDX-License-Identifier: Apache-2.0
"""Which rank an elastic worker reports as lost when its world has ended."""

import pytest

from horovod.common.exceptions import HorovodInternalError
from horovod.common.joining.elastic_place import lost_rank_of


@pytest.mark.parametrize(
    ("error", "blamed"),
    [
        (HorovodInternalError("rank 3 is lost (on host 'a'): its process ended", lost_rank=3), 3),
        (HorovodInternalError("UnknownError: rank 12 is lost (on host 'a')"), 12),  # as re-raised by TensorFlow
        (HorovodInternalError("something else"), None),
        # Rank 1 may only have noticed another rank's loss first. Reporting rank 1 would make the driver kill it.
        (HorovodInternalError("Horovod has been shut down: rank 1 (on host 'a') called shutdown", lost_rank=1), None),
    ],
)
def test_who_is_to_blame(error: HorovodInternalError, blamed: int | None) -> None:
    assert lost_rank_of(error) == blamed
