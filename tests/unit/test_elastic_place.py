# SPDX-License-Identifier: Apache-2.0
"""Whom an elastic worker accuses when its world has ended."""

import pytest

from horovod.common.exceptions import HorovodInternalError
from horovod.common.joining.elastic_place import lost_rank_of


@pytest.mark.parametrize(
    ("error", "blamed"),
    [
        (HorovodInternalError("rank 3 is lost (on host 'a'): its process ended", lost_rank=3), 3),
        (HorovodInternalError("UnknownError: rank 12 is lost (on host 'a')"), 12),  # as TensorFlow passes it on
        (HorovodInternalError("something else"), None),
        # It may only have been quicker to hear of somebody else's loss; a second later it would be killed for that.
        (HorovodInternalError("Horovod has been shut down: rank 1 (on host 'a') called shutdown", lost_rank=1), None),
    ],
)
def test_who_is_to_blame(error: HorovodInternalError, blamed: int | None) -> None:
    assert lost_rank_of(error) == blamed
