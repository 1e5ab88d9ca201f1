# SPDX-License-Identifier: Apache-2.0
"""Tools for programs that start ranks: the tests, the fault tests and the benchmarks.

Modules: places (paths in the repository), modules (imports by file), lifetimes and families (no process outlives its
owner), processes (output and deadlines) and stacks, launcher (horovodrun), variables and meeting (rendezvous), hosts
(network namespaces), pipes (synchronisation with workers), mutants (do the tests notice mistakes?).
"""
