# SPDX-License-Identifier: Apache-2.0
"""Operations on GPUs in a timeline."""

import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def on_gpus(path: Path, way: str) -> tuple[list[Event], dict[str, Event]]:
    """Return the first GPU's events by its own clock, and by tensor the event of its transfer of this kind."""
    events = [event for event in json.loads(path.read_text()) if "name" in event]
    rows = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    done = [event for event in events if rows.get(event["pid"]) == "GPU 0" and event["ph"] == "X"]
    return done, {rows[event["pid"]]: event for event in events if event["name"].startswith(way)}
