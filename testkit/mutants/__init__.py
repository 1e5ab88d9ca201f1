# SPDX-License-Identifier: Apache-2.0
"""Random one-line changes (mutants) to the engine and to Python's pure parts, and whether the tests notice them.

One idea a file: parts (which files are changed), change (one mutant), cpp_tokens + cpp_changes and python_changes (what
can be changed in a file), picks (the choice of a seed), trees (sources and build of one job), runs (a command with a
limit), judges (which tests judge a mutant), provenance (do they test the mutant?), verdicts (what follows from their
outcome), results (the file that later slices add to), slices (some minutes of judging), equivalents (mutants that no
test can notice), report, command (the command line of scripts/mutants).
"""
