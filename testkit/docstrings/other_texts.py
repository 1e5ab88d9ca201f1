# SPDX-License-Identifier: Apache-2.0
"""Texts of names that belong to no framework: horovod.run, horovod.data and horovod.ray."""

from __future__ import annotations

from testkit.docstrings.entry import Entry

HOROVOD = {
    "run": Entry(
        "Start a job, call a function on each of its ranks, and return the results.",
        "The function and its arguments are pickled by value, so lambdas and functions of a notebook work. With "
        "`min_num_proc` or `host_discovery_script` the job is elastic, and the results are those of the first "
        "`min_num_proc` ranks.",
        {
            "func": "The function, which calls hvd.init() itself.",
            "args": "Positional arguments of the function.",
            "kwargs": "Keyword arguments of the function.",
            "num_proc": "Number of ranks.",
            "min_num_proc": "The fewest ranks that an elastic job may run with.",
            "max_num_proc": "The most ranks that an elastic job may run with.",
            "slots": "Slots of each host that discovery names without a number (elastic jobs).",
            "reset_limit": "Fail after this many resets (elastic jobs).",
            "cooldown_range": "Seconds after which a failed host may come back, as (shortest, longest) (elastic jobs).",
            "hosts": "Hosts and their slots, such as 'host1:2,host2:4'.",
            "hostfile": "File of lines such as 'host1 slots=2'.",
            "host_discovery_script": "Program that prints hosts (elastic jobs).",
            "start_timeout": "Seconds that each host has to answer.",
            "ssh_port": "Port of sshd on all hosts.",
            "ssh_identity_file": "File of the private key for ssh.",
            "disable_cache": "Has no effect.",
            "output_filename": "Folder in which the output of each rank is also written.",
            "verbose": "Report more about the launch, and keep all output after a failure.",
            "use_gloo": "Use the engine without MPI, which is the default.",
            "use_mpi": "Start through mpirun.",
            "mpi_args": "More arguments for mpirun.",
            "network_interface": "Deprecated; use `network_interfaces`.",
            "network_interfaces": "Names of the network interfaces to use, as a list or with commas.",
            "executable": "The Python that runs the ranks. By default the one that runs this program.",
            "np": "Deprecated; use `num_proc`.",
            "min_np": "Deprecated; use `min_num_proc`.",
            "max_np": "Deprecated; use `max_num_proc`.",
            "tag": "Let printed lines begin with their rank. 'always', 'never', or 'auto', which means neither in a "
            "notebook nor with `use_mpi`.",
            "spares": "Number of workers that wait for another's place (elastic jobs).",
            "progress_timeout_seconds": "Report or replace a worker that has made no progress for so long (elastic "
            "jobs).",
            "replace_stuck_workers": "Replace workers that make no progress, instead of reporting them (elastic jobs).",
            "max_restarts": "Start all workers again after a failure, at most this many times.",
        },
        "What the function returned on each rank, in the order of the ranks.",
        {
            "RuntimeError": "A worker failed. The text holds the traceback of the one that failed first.",
            "ValueError": "Arguments are not valid or do not fit together.",
        },
        "import horovod\nresults = horovod.run(train, args=(0.1,), num_proc=2)  # train(0.1) on two ranks",
    ),
}
DATA = {
    "BaseDataLoader": Entry(
        "Base class for data loaders.",
        "Override `_iterate`, which yields batches, and `__len__`. `_process_batch(batch)` may change each batch in "
        "the "
        "thread that uses it, for example to move it to a device.",
        example="class Loader(BaseDataLoader):\n    def _iterate(self): yield from [1, 2, 3]\nfor batch in Loader(): "
        "print(batch)",
    ),
    "AsyncDataLoaderMixin": Entry(
        "Mixin that lets a thread load batches ahead of their use.",
        "It must be the first base class. An exception of the loader is raised where its batch would have come. The "
        "thread "
        "ends with the epoch, when its loop is left, or with close_async_loader().",
        {
            "async_loader_queue_size": "Number of batches to load ahead. 0 means no thread.",
            "debug_data_loader": "Print what the loader does to stderr.",
            "args": "Positional arguments of the other base classes.",
            "kwargs": "Keyword arguments of the other base classes.",
        },
        example="class Loader(AsyncDataLoaderMixin, BaseDataLoader):\n"
        "    def _iterate(self): yield from [1, 2, 3]\n"
        "for batch in Loader(async_loader_queue_size=2): print(batch)",
    ),
}
_WORKER = {
    "cpus_per_worker": "CPUs that Ray reserves for each worker.",
    "use_gpu": "Reserve GPUs for the workers.",
    "gpus_per_worker": "GPUs for each worker. It needs use_gpu=True.",
    "reset_limit": "Fail after this many resets (elastic jobs).",
    "override_discovery": "Find nodes through Ray, instead of by the settings' own discovery (elastic jobs).",
}
_SSH = {
    "nics": "Names of the network interfaces to use. By default that through which a worker reaches rank 0's node.",
    "ssh_port": "Has no effect.",
    "ssh_identity_file": "Has no effect.",
    "ssh_str": "Has no effect.",
}
_EXECUTOR = Entry(
    "Workers on a Ray cluster, each of which is a rank.",
    "Workers either stay (`num_workers`, or `num_hosts` with `num_workers_per_host`) or come and go (`min_workers`). "
    "Call "
    "start(), then run() as often as needed, then shutdown(). Ray's client (`ray.init('ray://...')`) works too.",
    {
        "settings": "What RayExecutor.create_settings() returns.",
        "num_workers": "Number of workers, placed on as few nodes as possible.",
        "num_hosts": "Number of nodes, each with `num_workers_per_host` workers.",
        "num_workers_per_host": "Workers on each node, with `num_hosts`.",
        "use_current_placement_group": "With `num_workers`, place the workers in the placement group of the caller, "
        "if there is one.",
        "min_workers": "The fewest workers that the job may run with.",
        "max_workers": "The most workers that the job may run with.",
        "cooldown_range": "Seconds after which a failed node may come back, as [shortest, longest] (elastic jobs).",
        "elastic_timeout": "Seconds to wait for enough workers (elastic jobs).",
        **_WORKER,
    },
    "",
    {"ValueError": "Arguments are not valid or do not fit together."},
    "executor = RayExecutor(RayExecutor.create_settings(), num_workers=2)\n"
    "executor.start()  # then executor.run(train, args=[0.1]) and executor.shutdown()",
)
RAY = {
    "RayExecutor": _EXECUTOR,
    "HorovodOnRayExecutor": _EXECUTOR,
    "ElasticRayExecutor": Entry(
        "Workers on all nodes of a Ray cluster, whose number changes with the cluster.",
        "Call start(), then run() with a function that uses hvd.elastic.run.",
        {
            "settings": "What ElasticRayExecutor.create_settings() returns, with min_num_proc and max_num_proc.",
            "cpus_per_slot": "CPUs that Ray reserves for each worker.",
            "gpus_per_slot": "GPUs for each worker. It needs use_gpu=True.",
            "env_vars": "Environment variables of the workers.",
            "use_gpu": _WORKER["use_gpu"],
            "override_discovery": "Find nodes through Ray, instead of by the settings' own discovery.",
        },
        "",
        {"ValueError": "`gpus_per_slot` is given without use_gpu=True."},
        "executor = ElasticRayExecutor(ElasticRayExecutor.create_settings(min_num_proc=2))\n"
        "executor.start()  # then executor.run(train)",
    ),
    "HorovodTrainer": Entry(
        "Trainer of Ray Train whose workers are ranks.",
        "The loop begins with hvd.init(). In it ray.train.report(), ray.train.get_dataset_shard() and "
        "ray.train.get_checkpoint() work as in other trainers of Ray. fit() runs it and returns Ray's Result, whose "
        "`metrics` are rank 0's last report. If a worker fails, Ray starts all of them again from the last checkpoint, "
        "`FailureConfig(max_failures=...)` times.",
        {
            "train_loop_per_worker": "The training loop, a function of no argument or of `train_loop_config`.",
            "train_loop_config": "Argument of the training loop.",
            "horovod_config": "How the workers meet, as HorovodConfig.",
            "scaling_config": "Ray's ScalingConfig. With num_workers=(fewest, most) the number of workers may change "
            "after a failure.",
            "run_config": "Ray's RunConfig.",
            "datasets": "Data sets of Ray, by name.",
            "dataset_config": "Ray's DataConfig.",
            "options": "Other arguments of Ray's DataParallelTrainer.",
        },
        example="trainer = HorovodTrainer(train, scaling_config=ray.train.ScalingConfig(num_workers=2))\n"
        "result = trainer.fit()",
    ),
    "HorovodConfig": Entry(
        "How the workers of a HorovodTrainer meet.",
        "",
        {
            **_SSH,
            "verbose": "From 2 on, workers log what they do.",
            "key": "Secret of the job. By default a new one for each group of workers.",
            "timeout_s": "Seconds that workers wait for each other in hvd.init().",
            "placement_group_timeout_s": "Seconds that fit() waits for nodes to join a cluster that is too small.",
        },
        example="config = HorovodConfig(timeout_s=60)\ntrainer = HorovodTrainer(train, horovod_config=config)",
    ),
    "BaseHorovodWorker": Entry(
        "Actor of Ray that becomes a rank.",
        "The executors start it; programs do not.",
        {"world_rank": "The rank until the worker joins a world.", "world_size": "The number of ranks until then."},
        example="actor = ray.remote(BaseHorovodWorker).remote()\nray.get(actor.hostname.remote())",
    ),
}
