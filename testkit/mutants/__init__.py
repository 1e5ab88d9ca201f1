# SPDX-License-Identifier: Apache-2.0
"""Random one-line changes (mutants) to the engine and to Python's pure modules, and a check that the tests notice them.

Modules: parts (files to change), change (one mutant), cpp_tokens + cpp_changes and python_changes (possible changes of
a file), picks (the mutants that a seed selects), trees (sources and build of one job), runs (a command with a time
limit), judges (tests that judge a mutant), provenance (checks that the tests import the mutant), verdicts (conclusions
from the tests' outcome), results (the file that later slices add to), slices (some minutes of judging), equivalents
(mutants that no test can notice), report, command (the command line of scripts/mutants).
"""
