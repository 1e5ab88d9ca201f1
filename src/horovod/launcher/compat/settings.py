# SPDX-License-Identifier: Apache-2.0
"""Settings of a job as an object, under Horovod's names. `horovodrun` itself does not use them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class BaseSettings:
    """Settings of a job. `start_timeout` is a Timeout (horovod.launcher.compat.timeout)."""

    num_proc: int | None = None
    verbose: int = 0
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    extra_mpi_args: str | None = None
    tcp_flag: bool | None = None
    binding_args: str | None = None
    key: bytes | None = None
    start_timeout: Any = None
    output_filename: str | None = None
    run_func_mode: bool | None = None
    nics: Any = None
    elastic: bool = False
    prefix_output_with_timestamp: bool = False


class Settings(BaseSettings):
    """Settings of a job with fixed hosts, such as "host1:2,host2:2"."""

    def __init__(self, hosts: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hosts = hosts
