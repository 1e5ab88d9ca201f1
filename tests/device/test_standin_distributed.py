# SPDX-License-Identifier: Apache-2.0
"""torch.distributed over the horovod backend on tensors of a device, with the stand-in of test_standin.py."""

from pathlib import Path

import pytest
from testkit.launcher import horovodrun
from testkit.long import in_long
from testkit.preloaded import command

PROGRAM = command(str(Path(__file__).parent / "standin" / "torch_program.py"))

pytestmark = pytest.mark.timeout(180)  # the first test compiles the stand-in
pytest.importorskip("torch")


@pytest.mark.parametrize(("ranks", "transport"), [in_long(2, "auto"), (4, "auto"), (2, "staged"), in_long(4, "staged")])
def test_every_collective(driver, ranks, transport):
    env = {**driver, "HOROVOD_GPU_TRANSPORT": transport, "STANDIN_DELAY_US": "200", "OMP_NUM_THREADS": "1"}
    done = horovodrun("-np", str(ranks), *PROGRAM, env=env, limit_s=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all checks passed") == ranks, done.stdout + done.stderr
