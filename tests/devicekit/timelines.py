# SPDX-License-Identifier: Apache-2.0
"""What a timeline tells of operations on GPUs."""

import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def on_gpus(path: Path, way: str) -> tuple[list[Event], dict[str, Event]]:
    """What the first GPU did, by its own clock; by tensor: when its transfer, of such a way, was launched."""
    events = [event for event in json.loads(path.read_text()) if "name" in event]
    rows = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    done = [event for event in events if rows.get(event["pid"]) == "GPU 0" and event["ph"] == "X"]
    return done, {rows[event["pid"]]: event for event in events if event["name"].startswith(way)}
