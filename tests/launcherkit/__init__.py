# SPDX-License-Identifier: Apache-2.0
"""Other launchers for tests: Open MPI and MPICH from their wheels, and a small Slurm cluster on this machine."""
