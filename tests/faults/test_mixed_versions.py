# SPDX-License-Identifier: Apache-2.0
"""Fault 32: a rank of another release is refused at the rendezvous; every rank shows the hosts and their versions."""

import re

from faultkit.jobs import PlainJob, program

import horovod


def test_fault_32_every_rank_is_shown_who_runs_which_version():
    with PlainJob(program("mixed"), "a:1,b:2") as job:
        assert job.wait(limit_s=40) == [1, 1, 1], job.printed_by_all()
        refusals = job.reports.await_event("refused", range(3))
    for refusal in refusals.values():
        text = refusal["text"]
        assert "the workers run different versions of khorovod; install the same one everywhere" in text
        own = re.escape(horovod.__version__)
        assert re.search(rf"a +{own} +0\n", text), text
        assert re.search(r"b +99\.0 +1\n", text), text
        assert re.search(rf"b +{own} +2", text), text
