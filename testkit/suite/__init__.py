# SPDX-License-Identifier: Apache-2.0
"""`make test` and `make test-all`: which parts they consist of, how the parts run, and what they report.

parts (the list), selection (which tests belong to a part), plugin (the hooks in pytest) over records (what pytest
writes for us), schedule (what starts when, pure), unchanged (what need not run again), running (processes and
progress), summary (tables, pure). All but selection and plugin run before anything is installed, so they need only the
standard library.
"""
