# SPDX-License-Identifier: Apache-2.0
"""Launcher: `horovodrun` and `horovod.run`. Horovod's own import paths are in horovod.runner."""
