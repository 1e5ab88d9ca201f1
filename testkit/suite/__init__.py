# SPDX-License-Identifier: Apache-2.0
"""`make test` and `make test-all`: their parts, how these run, and the report.

Modules: parts (the list), selection (the tests of a part), plugin (pytest hooks) with records (one line for each test),
schedule (which part starts next; pure), unchanged (parts that need not run again), running (processes and progress),
summary (tables; pure). Only selection and plugin may need installed packages; the others run before anything is
installed, with the standard library.
"""
