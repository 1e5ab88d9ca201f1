# SPDX-License-Identifier: Apache-2.0
"""The fallback for a TensorFlow that cannot load the native operations gives equal results."""

import pytest
from harness.worlds import on_all_ranks


@on_all_ranks("shm2", limit_s=120)
def test_the_same_as_natively():
    from pathlib import Path

    from harness.tensorflow_door import MODES, hvd, ways
    from testkit.modules import load

    from horovod.tensorflow import native

    collectives, gradients = (
        load(Path(__file__).with_name(f"test_tensorflow_{name}.py"), "body_") for name in ("collectives", "gradients")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOROVOD_TENSORFLOW_NATIVE", "0")
        operations, why_not = native._load()
        assert "HOROVOD_TENSORFLOW_NATIVE=0" in why_not
        patch.setattr(ways, "operations", operations)  # importing horovod.tensorflow with this setting does this
        for mode in MODES:
            collectives.test_alltoall_with_splits.body(mode)
            collectives.test_groups_of_all_dtypes_with_factors.body(mode)
            collectives.test_join_and_questions.body(mode)
            if mode != "graph":  # a Session runs independent operations in no fixed order
                collectives.test_reducescatter.body(mode)
                collectives.test_movements.body(mode)
                gradients.test_gradients.body(mode)
    return hvd.size()
