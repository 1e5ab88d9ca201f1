# SPDX-License-Identifier: Apache-2.0
"""Real foreign launchers for tests: Open MPI and MPICH from their wheels, a small Slurm cluster on this machine."""
