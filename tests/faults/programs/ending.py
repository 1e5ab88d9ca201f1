# SPDX-License-Identifier: Apache-2.0
"""End while daemon threads are inside calls: `ending.py KINDS CODE SEED`; KINDS names the calls of the threads.

Each thread makes one call in a loop, together with the corresponding thread of the other rank. The main thread ends the
program after a number of rounds that the seed chooses: it returns, or calls sys.exit(CODE).
"""

import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from faultkit.ending_calls import KINDS, SET_UP
from faultkit.reports import VARIABLE

import horovod.numpy as hvd
from horovod.common.context import default_context

kinds, code, seed = sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3])
for set_up in dict.fromkeys(SET_UP[kind.split(":")[0]] for kind in kinds):
    set_up()
other = 1 - hvd.rank()
# Wait until both ranks are set up: a rank that ended earlier would make hvd.init() of the other rank fail.
folder = Path(os.environ[VARIABLE]).parent
(folder / f"set-up-{hvd.rank()}").touch()
while not (folder / f"set-up-{other}").exists():
    time.sleep(0.001)
rounds = {kind: threading.Semaphore(0) for kind in kinds}
began = threading.Semaphore(0)


def loop(kind: str, call: Callable[[], object]) -> None:
    began.release()
    while True:
        try:
            call()
        except Exception as error:
            # The other rank may end first, and the error that names it is right. Errors caused by this rank's own end
            # must not reach its threads.
            if f"rank {other}" not in str(error):
                raise
            # The other rank takes part in no more rounds, so the main thread must not wait for any.
            rounds[kind].release(3 * len(kinds))
            threading.Event().wait()
        rounds[kind].release()


for kind in kinds:
    threading.Thread(target=loop, args=(kind, KINDS[kind]), name=kind, daemon=True).start()
    began.acquire()
for kind in random.Random(seed).choices(kinds, k=3 * len(kinds)):
    if not kind.endswith(":waits"):
        rounds[kind].acquire()
if "jax.alone:waits" in kinds:
    while not (counted := default_context.counters()) or not counted["operations_under_way"]:
        time.sleep(0.001)
if code:
    sys.exit(code)
