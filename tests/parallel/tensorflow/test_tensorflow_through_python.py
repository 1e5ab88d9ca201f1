# SPDX-License-Identifier: Apache-2.0
"""The way for a TensorFlow that cannot load the native operations gives the same results."""

from harness.worlds import DYNAMIC, World, on_all_ranks

THROUGH_PYTHON = World("python2", "a:2", DYNAMIC | {"HOROVOD_TENSORFLOW_NATIVE": "0"})


@on_all_ranks(THROUGH_PYTHON, limit_s=120)
def test_the_same_as_natively():
    from pathlib import Path

    from harness.tensorflow_door import MODES, hvd, ways
    from testkit.modules import load

    collectives, gradients = (
        load(Path(__file__).with_name(f"test_tensorflow_{name}.py"), "body_") for name in ("collectives", "gradients")
    )
    assert ways.operations is None
    assert "HOROVOD_TENSORFLOW_NATIVE=0" in ways.why_not_native
    for mode in MODES:
        collectives.test_alltoall_with_splits.body(mode)
        collectives.test_groups_of_all_dtypes_with_factors.body(mode)
        collectives.test_join_and_questions.body(mode)
        if mode != "graph":  # nothing orders what a Session runs
            collectives.test_reducescatter.body(mode)
            collectives.test_movements.body(mode)
            gradients.test_gradients.body(mode)
    return hvd.size()
