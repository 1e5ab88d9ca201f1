# SPDX-License-Identifier: Apache-2.0
"""Stacks of all threads of the ranks below a process, as `hvd stacks` shows them."""

from __future__ import annotations

from horovod.tools.stacks import NoAnswer, Offer, find_workers, read_stacks, title
from testkit.preloaded import servers


def stacks_below(pid: int) -> str:
    """Return the stacks of the process, or of the ranks that it has started; or why there are none to show."""
    shown = []
    try:
        for offer in find_workers([pid, *servers()]):
            shown.append(title(offer.pid))
            shown.append(_answer(offer))
    except NoAnswer as reason:
        shown.append(str(reason))
    return "\n".join(shown)


def _answer(offer: Offer) -> str:
    try:
        return read_stacks(offer)
    except NoAnswer as reason:
        return str(reason)
