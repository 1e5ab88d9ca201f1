# SPDX-License-Identifier: Apache-2.0
"""Parts of the performance report: each measures one aspect of the project, in turn with its peers."""

from __future__ import annotations

from collections.abc import Callable

from benchkit.parts import collectives, launch, network, small, training, types
from benchkit.parts.bench import Bench

PARTS: dict[str, Callable[[Bench], None]] = {
    "collectives": collectives.measure_collectives,
    "small": small.measure_small,
    "types": types.measure_types,
    "network": network.measure_network,
    "launch": launch.measure_launch,
    "training": training.measure_training,
    "scaling": collectives.measure_scaling,
}
