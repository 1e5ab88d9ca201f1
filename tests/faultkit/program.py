# SPDX-License-Identifier: Apache-2.0
"""Run a job's program as if it had been started directly, with the tests' warning rules."""

import runpy
import sys

import warning_rules

warning_rules.apply()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
