# SPDX-License-Identifier: Apache-2.0
"""Executor of the driver's `Probe` actions: threads let the agents of the hosts try to reach each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Mapping

from horovod.launcher.elastic.vocabulary import Probe, Probed
from horovod.launcher.remote.addresses import Choice
from horovod.launcher.remote.hosts import RemoteHosts
from horovod.launcher.remote.reachability import find_cuts


class CutProber:
    """Prober that runs one round at a time.

    Args:
        remote: The agents of the other hosts.
        choices: Returns the current addresses of the job's hosts, by host.
        elsewhere: Hosts that have or had an agent.
        notify: Receives the answer.
    """

    def __init__(
        self,
        remote: RemoteHosts,
        choices: Callable[[], Mapping[str, Choice]],
        elsewhere: Container[str],
        notify: Callable[[Probed], None],
    ) -> None:
        self._remote = remote
        self._choices = choices
        self._elsewhere = elsewhere
        self._notify = notify
        self._one_round = threading.Lock()

    def begin(self, probe: Probe) -> None:
        threading.Thread(target=self._run, args=(probe,), name="horovod-cuts", daemon=True).start()

    def _run(self, probe: Probe) -> None:
        try:
            with self._one_round:
                cut = find_cuts(self._remote, self._choices(), self._elsewhere, probe.number, probe.pairs)
        except OSError:  # no port or descriptor was available; the driver handles a round without an answer
            return
        self._notify(Probed(probe.number, cut))
