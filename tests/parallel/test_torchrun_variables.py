# SPDX-License-Identifier: Apache-2.0
"""hvd.init() sets torchrun's variables at every call, for libraries that read the rank from them."""

import os
import socket

from harness.worlds import on_all_ranks

import horovod.numpy as hvd
from horovod.common.torchrun_variables import MARK, NAMES


def found():
    return {name: os.environ.get(name) for name in NAMES}


@on_all_ranks("one", "shm2", "hosts3")
def test_init_writes_them_anew_each_time():
    place = dict(zip(NAMES, (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()), strict=False))
    assert {name: os.environ[name] for name in place} == {name: str(value) for name, value in place.items()}
    mains = hvd.allgather_object((os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]), name="mains")
    assert len(set(mains)) == 1
    before = found()

    # init() replaces a port that is in use, keeps a value that the program changed, and restores a deleted variable.
    with socket.create_server(("", int(before["MASTER_PORT"]))) if hvd.rank() == 0 else socket.socket():
        os.environ["LOCAL_RANK"] = "77"
        del os.environ["WORLD_SIZE"]
        hvd.shutdown()
        hvd.init()
        after = found()
        hvd.allgather_object(None, name="all have met while rank 0 listened")
    assert after["LOCAL_RANK"] == "77"
    assert after["WORLD_SIZE"] == before["WORLD_SIZE"]
    assert after["MASTER_PORT"] != before["MASTER_PORT"]
    assert len(set(hvd.allgather_object(after["MASTER_PORT"], name="ports"))) == 1
    os.environ["LOCAL_RANK"] = before["LOCAL_RANK"]
    os.environ[MARK] += f" LOCAL_RANK={before['LOCAL_RANK']}"
