# SPDX-License-Identifier: Apache-2.0
"""tf.data's service with real dispatchers and workers: a compute job and its trainers connect through a file."""

import sys

import pytest
from harness.tensorflow_training import LIMIT
from testkit.launcher import HOROVODRUN
from testkit.long import in_long
from testkit.processes import Process, run, wait_for_all

pytestmark = pytest.mark.timeout(LIMIT)

TRAINER = """
import sys
import tensorflow as tf
import horovod.tensorflow as hvd
from horovod.tensorflow.data.compute_service import TfDataServiceConfig, send_to_data_service, tf_data_service

hvd.init()
config = TfDataServiceConfig.read(sys.argv[1], wait_for_file_creation=True)
squares = tf.data.Dataset.range(20).map(lambda x: x * x)
if config.dispatcher_side == "compute":
    with tf_data_service(config, hvd.rank()) as address:
        mode = "distributed_epoch"
        shared = squares.apply(tf.data.experimental.service.distribute(mode, address, job_name="shared"))
        mine = [int(x) for x in shared]
        everyones = hvd.allgather_object(mine)
else:
    shared = squares.send_to_data_service(config, hvd.rank(), reuse_dataset=True)
    everyones = hvd.allgather_object([int(x) for x in shared])
assert sorted(sum(everyones, [])) == [i * i for i in range(20)], everyones
"""


def launched(ranks):
    return [*HOROVODRUN, "-np", str(ranks), sys.executable]


@pytest.mark.parametrize(("side", "workers"), [("compute", 2), in_long("training", 1)])
def test_trainers_share_an_epoch(side, workers, tmp_path):
    config, program = tmp_path / "config.json", tmp_path / "trainer.py"
    program.write_text(TRAINER)
    options = ["--dispatcher-side", side, "--timeout", "100"]
    worker = [*launched(workers), "-m", "horovod.tensorflow.data.compute_worker", *options]
    env = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    with Process([*worker, str(config)], env) as compute:
        done = run([*launched(2), str(program), str(config)], env, limit_s=150)
        assert done.returncode == 0, done.stdout + done.stderr + compute.account()
        # The compute job ends when the trainers end.
        assert wait_for_all([compute], limit_s=30) == [0], compute.printed()
        assert not config.exists()


def test_the_file_is_private_and_whole(tmp_path):
    from horovod.tensorflow.data.compute_service import TfDataServiceConfig

    config = TfDataServiceConfig(1, 2, "compute", {"eth0": [("10.0.0.1", 4711)]}, bytes(range(32)), timeout=5)
    path = tmp_path / "config.json"
    config.write(str(path))
    assert TfDataServiceConfig.read(str(path)) == config
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(ValueError, match="dispatcher_side"):
        TfDataServiceConfig(1, 2, "both", {}, b"")
    from horovod.common.rendezvous.client import RendezvousError

    with pytest.raises(RendezvousError, match="cannot be reached"):
        TfDataServiceConfig(1, 2, "compute", {"lo": [("127.0.0.1", 9)]}, bytes(32)).compute_client()
