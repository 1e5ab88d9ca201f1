# SPDX-License-Identifier: Apache-2.0
"""Signs of life on behalf of a suspended launcher (Ctrl-Z), sent by another process.

That process ends with the launcher, so agents whose launcher is lost still notice.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from horovod.launcher.remote import frames

# A sign of life is so short that a pipe takes all of it or nothing.
_PROGRAM = """
import os, select, sys
sign, every_s, places = bytes.fromhex(sys.argv[1]), float(sys.argv[2]), [int(word) for word in sys.argv[3:]]
stdin = select.poll()
stdin.register(0, select.POLLIN)
while not stdin.poll(1000 * every_s):
    for place in list(places):
        try:
            os.write(place, sign)
        except BlockingIOError:
            pass
        except OSError:
            places.remove(place)
"""
_END_LIMIT_S = 2.0


@contextmanager
def kept(descriptors: Sequence[int]) -> Iterator[None]:
    """Send signs of life to the agents while the context is active.

    Args:
        descriptors: The agents' descriptors, none of which has a partly written message.
    """
    words = [frames.pack("alive").hex(), str(frames.ALIVE_EVERY_S), *map(str, descriptors)]
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROGRAM, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=descriptors,
        start_new_session=True,  # in a session of its own, so that Ctrl-Z does not suspend it
    ) as keeper:
        try:
            yield
        finally:
            assert keeper.stdin is not None
            keeper.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                keeper.wait(_END_LIMIT_S)
            keeper.kill()
