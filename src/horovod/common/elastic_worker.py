# SPDX-License-Identifier: Apache-2.0
"""Values that a worker of an elastic job keeps from one generation to the next.

Without an elastic driver they have no effect.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace

from horovod._engine import World
from horovod.common import place_variables
from horovod.common.elastic_sets import Heritage
from horovod.common.exceptions import HorovodInternalError
from horovod.common.joining import elastic_place
from horovod.common.joining.bootstrap import Wishes
from horovod.common.joining.loss import Loss
from horovod.common.lineage import SeenFile, merged
from horovod.common.settings import Settings


class ElasticWorker:
    """Memory of one worker.

    Attributes:
        has_state: True if this worker has the training's state and can send it to others.
        seen_files: The newest checkpoint files that any worker of the job has seen.
        heritage: The process sets of earlier generations.
        tuning: Values that the autotuner has found, or None.
    """

    def __init__(self) -> None:
        self.has_state = False
        self.seen_files: dict[int, SeenFile] = {}
        self.heritage = Heritage()
        self.tuning: dict[str, int] | None = None
        self._loss: Loss | None = None  # loss that ended the last world

    def take_place(self, settings: Settings) -> elastic_place.ElasticPlace:
        """Wait for the place that the driver assigns to this worker, and put it into the environment."""
        lost, self._loss = self._loss, None
        fresh, seen = not self.has_state, tuple(self.seen_files.values())
        place = elastic_place.take_place(settings, os.environ, lost, fresh=fresh, seen=seen)
        self.seen_files = merged(self.seen_files, place.seen)
        os.environ.update(place.variables())
        os.environ.pop(place_variables.PLANNED, None)
        return place

    def note_loss(self, error: HorovodInternalError) -> None:
        """Record why a world ended. The next request to the driver reports it."""
        self._loss = elastic_place.loss_of(error)

    def note_tuning(self, world: World) -> None:
        """Keep the values that this world's autotuner has found, if it has finished."""
        self.tuning = tuned_by(world.describe()) or self.tuning

    def added_to(self, wishes: Wishes, host: str) -> Wishes:
        """Return the wishes together with what the other ranks must know about earlier generations."""
        word = self.heritage.word(elastic_place.birth_id(os.environ), host).packed()
        return replace(wishes, heritage=word, tuning=self.tuning)


def tuned_by(description: str) -> dict[str, int] | None:
    """Return the values that the autotuner has found, from World.describe(). Return None while it has not finished."""
    found = json.loads(description)
    if found.get("autotune") != "done":
        return None
    return {name: int(found[name]) for name in ("fusion_threshold", "cycle_time_us", "chunk_bytes")}
