# SPDX-License-Identifier: Apache-2.0
"""Files with which ranks wait for each other without the engine, which may have ended."""

import os
import time
from collections.abc import Iterable
from pathlib import Path


class Signs:
    """Events that the ranks of one job have reached, as files in a folder that is empty when the job starts."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def show(self, what: str) -> None:
        """Report to the other ranks that this rank has reached an event."""
        (self._folder / f"{what} {os.environ['HOROVOD_RANK']}").touch()

    def wait_for(self, what: str, ranks: Iterable[int]) -> None:
        """Wait until all these ranks have reached an event.

        Only the time limit of the test ends the wait if one never does.
        """
        missing = [self._folder / f"{what} {rank}" for rank in ranks]
        while missing := [path for path in missing if not path.exists()]:
            time.sleep(0.001)
