# SPDX-License-Identifier: Apache-2.0
"""LSF's jsrun under its old import path. `horovodrun --jsrun` starts jobs through it."""

from __future__ import annotations

import shutil

from horovod.common.not_yet import function

generate_jsrun_rankfile = function(__name__, "generate_jsrun_rankfile")
js_run = function(__name__, "js_run")


def is_jsrun_installed() -> bool:
    return shutil.which("jsrun") is not None
