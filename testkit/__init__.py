# SPDX-License-Identifier: Apache-2.0
"""Processes, hosts and lifetimes for all that starts real ranks: the tests, the fault tests and the benchmarks.

One idea a file: places (where things are), modules (files that are on no path), lifetimes and families (nothing
outlives its owner), processes (output, deadlines) and stacks, launcher (horovodrun), variables and meeting (how ranks
find each other), hosts (network namespaces), pipes (workers tell and wait), mutants (do tests notice mistakes?).
"""
