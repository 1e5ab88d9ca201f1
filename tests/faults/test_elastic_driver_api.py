# SPDX-License-Identifier: Apache-2.0
"""A program that starts the workers of an elastic job itself with ElasticDriver, as integrations of Horovod do."""

import os
import signal
import time

import pytest
from faultkit.jobs import program
from faultkit.reports import VARIABLE, Reports
from testkit.places import ROOT, TESTS, python_path

from horovod.runner.common.util import safe_shell_exec
from horovod.runner.elastic.discovery import HostDiscoveryScript
from horovod.runner.elastic.driver import ElasticDriver
from horovod.runner.elastic.rendezvous import create_rendezvous_handler
from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
from horovod.runner.http.http_server import RendezvousServer

pytestmark = pytest.mark.timeout(150)


class Integration:
    """Job that is started and ended as integrations do. Its workers run tests/faults/programs/elastic.py."""

    def __init__(self, folder, **limits):
        self.reports = Reports()
        self.stop_file, self.log = folder / "stop", (folder / "output").open("w")
        (folder / "hosts").write_text("localhost:2\n")
        self.rendezvous = RendezvousServer()
        discovery = HostDiscoveryScript(f"cat {folder}/hosts", None)
        self.driver = ElasticDriver(self.rendezvous, discovery, 1, 2, timeout=60, **limits)
        port = self.rendezvous.start(create_rendezvous_handler(self.driver))
        self.run_env = create_run_env_vars("127.0.0.1", None, port, elastic=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.driver.stop()
        self.rendezvous.stop()
        self.reports.close()
        self.log.close()

    def work(self, slot_info, events):
        own = {"PYTHONPATH": python_path(ROOT, TESTS), VARIABLE: self.reports.path, "OMP_NUM_THREADS": "1"}
        env = {**os.environ, **own, **self.run_env, **create_slot_env_vars(slot_info)}
        command = program("elastic", "numpy", str(self.stop_file))
        code = safe_shell_exec.execute(command, env=env, stdout=self.log, stderr=self.log, events=events)
        return code, time.time()

    def stepped(self, generation, size):
        """Wait until all workers of a generation have made a step. Return their reports by rank."""

        def all_of_them(reports):
            steps = [one for one in reports if one["event"] == "stepped" and one["generation"] == generation]
            return {one["rank"]: one for one in steps} if len(steps) == size else None

        return self.reports.await_that(all_of_them, 60)


def test_a_program_of_its_own_gets_a_working_elastic_job(tmp_path):
    with Integration(tmp_path) as job:
        job.driver.start(2, job.work)
        first = job.stepped(0, 2)
        assert [slot.rank for slot in job.rendezvous.plan] == [0, 1]
        os.kill(first[0]["pid"], signal.SIGKILL)
        survivor = {job.stepped(1, 1)[0]["birth"], job.stepped(2, 2)[0]["birth"]}
        assert survivor == {first[1]["birth"]}, "rank 0 is who has the state"
        assert job.driver.world_size() == 2
        job.stop_file.touch()
        results = job.driver.get_results()
        assert results.error_message is None, (tmp_path / "output").read_text()
        assert {name: code for name, (code, _) in results.worker_results.items()} == {
            "localhost[0]": 0,
            "localhost[1]": 0,
        }
        planned = {one["birth"]: one["planned"] for one in job.reports.all if one["event"] == "starts"}
        assert planned[2] == [1, 2, 0, 2, 0, 1], "its slot has been that of worker 0"


def test_stop_ends_the_workers_of_a_job_that_runs(tmp_path):
    with Integration(tmp_path) as job:
        job.driver.start(2, job.work)
        job.stepped(0, 2)
        job.driver.stop()
        codes = {code for code, _ in job.driver.get_results().worker_results.values()}
        assert codes == {128 + signal.SIGTERM}
