# SPDX-License-Identifier: Apache-2.0
"""Metrics of ranks that Ray's nodes publish at their Prometheus ports."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Collection, Iterable

import ray

Figures = dict[str, float]  # values by the metric's name
_SAMPLE = re.compile(r"(ray_horovod_\w+)\{(.*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def await_metrics(run: str, ranks: Collection[int], least: Figures, limit_s: float = 90) -> dict[int, Figures]:
    """Return the metrics of this run's ranks once all reach `least`; raise AssertionError if they do not in time."""
    until = time.monotonic() + limit_s
    while True:
        found = scraped(run)
        if all(found.get(rank, {}).get(name, 0.0) >= value for rank in ranks for name, value in least.items()):
            return found
        assert time.monotonic() < until, f"not {least} of all ranks {ranks} within {limit_s:g} s: {found}"
        time.sleep(0.2)


def scraped(run: str) -> dict[int, Figures]:
    """Return the metrics of each rank; if several processes in turn were one rank, the largest value."""
    found: dict[int, Figures] = {}
    for name, labels, value in _samples():
        if labels.get("run") == run:
            figures = found.setdefault(int(labels["rank"]), {})
            figures[name] = max(value, figures.get(name, 0.0))
    return found


def _samples() -> Iterable[tuple[str, dict[str, str], float]]:
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                page = answer.read().decode()
        except OSError:  # Ray has not yet noticed that the node has ended
            continue
        for sample in _SAMPLE.finditer(page):
            yield sample[1], dict(_LABEL.findall(sample[2])), float(sample[3])
