# SPDX-License-Identifier: Apache-2.0
"""The driver's event loop, with a rendezvous and a process launcher that do nothing."""

from contextlib import closing
from unittest.mock import Mock

import pytest

from horovod.launcher.elastic.driving import Driver
from horovod.launcher.elastic.mail import Mail
from horovod.launcher.elastic.vocabulary import Limits


@pytest.mark.timeout(20)
def test_the_time_limit_ends_a_job_of_which_no_host_is_ever_found():
    said = []
    with closing(Mail()) as mail:
        outcome = Driver(Limits(1, 1, 1, timeout_s=0.2), Mock(), Mock(), said.append).run(mail)
    assert outcome.exit_code == 1
    assert outcome.text.startswith("the elastic job is ended: after 0.2 s (--elastic-timeout) 0 workers are ready")
    assert said == [outcome.text]
