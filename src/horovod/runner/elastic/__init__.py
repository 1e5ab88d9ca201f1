# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs, whose hosts may come and go. So far only the worker's side is here."""
