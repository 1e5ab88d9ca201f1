# SPDX-License-Identifier: Apache-2.0
"""Texts of public methods, by the name of the class that defines them and their own."""

from __future__ import annotations

from testkit.docstrings.entry import Entry

_COMPRESS = Entry(
    "Return the $tensor to send, and what decompress() needs.",
    args={"tensor": "The $tensor to compress."},
    returns="The compressed $tensor, and a context of any type that stays on this rank.",
)
_DECOMPRESS = Entry(
    "Return the result of a collective in its original type.",
    args={"tensor": "The result that came back.", "ctx": "The context that compress() returned."},
    returns="The $tensor in its original type.",
)
_UNREGISTERED = "None while the set is not registered."

# Methods that every API has.
SHARED = {
    "ProcessSet.process_set_id": Entry(
        "Return the id by which the engine knows the set.",
        "A program may assign an id. The object then stands for the registered set with that id, if there is one.",
        returns=f"The id; {_UNREGISTERED}",
    ),
    "ProcessSet.size": Entry("Return the number of ranks in the set.", returns=f"The number; {_UNREGISTERED}"),
    "ProcessSet.rank": Entry(
        "Return this process's number within the set.",
        returns=f"The number, counted from 0; {_UNREGISTERED}",
        raises={"ValueError": "This process is not a member."},
    ),
    "ProcessSet.included": Entry(
        "Return True if this process is a member of the set.", returns=f"True or False; {_UNREGISTERED}"
    ),
    "State.register_reset_callbacks": Entry(
        "Add functions to call after the set of workers has changed, for example to adapt a learning rate.",
        args={"callbacks": "The functions, which take no arguments."},
    ),
    "State.on_reset": Entry(
        "Adapt to the new set of workers: call reset(), then the reset callbacks.",
        "hvd.elastic.run calls this after the workers have met in a new world.",
    ),
    "State.on_hosts_updated": Entry(
        "Record that hosts came or went.",
        "This is called on any thread when the driver sends the message.",
        {"timestamp": "When the hosts changed.", "update_res": "1 if hosts were removed, 2 if added, 3 for both."},
    ),
    "State.commit": Entry(
        "Save the state in memory, and let the set of workers change if hosts came or went.",
        "Every rank must call this. After a failure, training goes on from the last commit.",
        raises={"HostsUpdatedInterrupt": "Hosts came or went. hvd.elastic.run handles it."},
    ),
    "State.check_host_updates": Entry(
        "Let the set of workers change if hosts came or went, without saving the state.",
        "Every rank must call this.",
        raises={"HostsUpdatedInterrupt": "Rank 0 has a message that hosts came or went. hvd.elastic.run handles it."},
    ),
    "State.save": Entry("Keep a copy of the state in memory."),
    "State.restore": Entry("Return to the state that was saved last."),
    "State.sync": Entry("Replace the state of all workers by rank 0's."),
    "State.reset": Entry("Adapt to a new set of workers, before the reset callbacks are called."),
    "State.use_checkpoint": Entry(
        "Write commits to disk.",
        "hvd.elastic.checkpoint() calls this.",
        args={"checkpoint": "What writes them, or None to stop."},
    ),
    "State.pin_commit": Entry(
        "Return the last commit by name, for writing it to disk.",
        "It does not change until release_commit() is called, even if other commits follow.",
        returns="The values of the commit, by name.",
        raises={"NotImplementedError": "This kind of state cannot be written to disk."},
    ),
    "State.release_commit": Entry("Release the pinned commit.", "This may be called on any thread."),
    "State.load_commit": Entry(
        "Replace the state by a commit of an earlier job, and save it.",
        args={"content": "What pin_commit() returned in that job."},
        raises={
            "ValueError": "The commit does not fit the state.",
            "NotImplementedError": "This kind of state cannot be read from disk.",
        },
    ),
    "Compressor.compress": _COMPRESS,
    "Compressor.decompress": _DECOMPRESS,
}
TORCH = {
    "SyncBatchNorm.convert_sync_batchnorm": Entry(
        "Replace every BatchNorm layer of a module by a SyncBatchNorm with its parameters and statistics.",
        args={"module": "The module; a BatchNorm layer or any module that contains some."},
        returns="The module, or the new layer if the module itself is a BatchNorm layer.",
    ),
    "ElasticSampler.set_epoch": Entry("Begin an epoch from its first sample.", args={"epoch": "Number of the epoch."}),
    "ElasticSampler.record_batch": Entry(
        "Record that every rank has processed a batch.",
        "The order of the other samples does not change until reset().",
        {"batch_idx": "Number of the batch, which is not used.", "batch_size": "Number of samples on each rank."},
    ),
    "ElasticSampler.state_dict": Entry(
        "Return how far the epoch has got.", returns="The epoch and the number of processed samples."
    ),
    "ElasticSampler.load_state_dict": Entry(
        "Go on where a saved epoch was.", args={"state_dict": "What state_dict() returned."}
    ),
    "ElasticSampler.reset": Entry("Divide the samples that are not processed among the present ranks."),
}
TENSORFLOW = {
    "GradientAccumulation.register_local_var": Entry(
        "Exclude the gradient of a variable from the reduction.", args={"var": "The variable."}
    ),
    "GradientAccumulation.locally_aggregated_grads": Entry(
        "Return the sums of gradients so far.",
        returns="The sums, in the order in which their variables first had a gradient.",
    ),
}
KERAS = {
    "BroadcastGlobalVariablesCallbackImpl.register_local_var": Entry(
        "Exclude a variable from the broadcast.", args={"var": "The variable."}
    ),
}
_STATE = Entry(
    "Return what training in rounds needs to continue.",
    "Save it beside the model.",
    returns="The counters, the global weights and the outer momentum.",
)
_PARAMS = {"params": "Tree of the parameters of this rank."}
KERAS |= {
    "RoundsCallbackImpl.state_dict": _STATE.but(
        returns="The counters, the global weights and the outer momentum. It is empty before the first batch."
    ),
    "RoundsCallbackImpl.load_state_dict": Entry(
        "Continue from a saved state.",
        "Load the model's own weights and optimizer beforehand.",
        {"state": "What state_dict() returned."},
    ),
}
JAX = {
    "DiLoCo.begin": Entry(
        "Return the parameters of the first rank.",
        "Call this before the first step, on all ranks.",
        dict(_PARAMS),
        "The parameters that all ranks begin with.",
    ),
    "DiLoCo.step": Entry(
        "Return the parameters to continue with.",
        "Call this after each inner step.",
        dict(_PARAMS),
        "The parameters for the next inner step.",
    ),
    "DiLoCo.finish": Entry(
        "Return the global parameters.",
        "Call this at the end of the training, on all ranks.",
        dict(_PARAMS),
        "The parameters, which are equal on all ranks.",
    ),
    "DiLoCo.sync": Entry(
        "Return the global parameters of the rank with the highest round.",
        "Call this after an elastic reset, on all ranks.",
        dict(_PARAMS),
        "The parameters, which are equal on all ranks.",
    ),
    "DiLoCo.state_dict": _STATE.but(about="Save it beside the parameters."),
    "DiLoCo.load_state_dict": Entry("Continue from a saved state.", args={"state": "What state_dict() returned."}),
}
MXNET = {
    "DistributedOptimizer.unwrap": Entry(
        "Return the wrapped optimizer.", returns="The optimizer, with its original rescale_grad."
    ),
}
DATA = {
    "AsyncDataLoaderMixin.close_async_loader": Entry(
        "Stop loading.",
        "A loop that is still running ends after the batches that are loaded. This may be called twice.",
    ),
}
_OBJECT = {
    "executable_cls": "Class of the object, or None.",
    "executable_args": "Positional arguments for the class.",
    "executable_kwargs": "Keyword arguments for the class.",
}
_CALL = {
    "fn": "The function, which is pickled by value.",
    "args": "Its positional arguments.",
    "kwargs": "Its keyword arguments.",
}
_CALLBACKS = {"callbacks": "Functions that get what the workers pass to ray_logger.log()."}
_FAILURES = {"HorovodInternalError": "A worker died. The text names its rank and node."}
_BY_RANK = "One result for each worker, in the order of the ranks."
RAY = {
    "RayExecutor.create_settings": Entry(
        "Return settings for RayExecutor.",
        "The arguments for ssh are accepted for programs written for Horovod.",
        {
            "timeout_s": "Seconds that ranks wait for each other in hvd.init().",
            "ssh_identity_file": "File to which `ssh_str` is written if it does not exist. It is not used.",
            "ssh_str": "Text of a private key, which is not used.",
            "placement_group_timeout_s": "Seconds that start() waits for resources, and for nodes that join.",
            "nics": "Names of the network interfaces to use.",
        },
        "The settings.",
    ),
    "RayExecutor.start": Entry(
        "Start the workers, and create an object in each of them.",
        "",
        {**_OBJECT, "extra_env_vars": "Environment variables of the workers."},
    ),
    "RayExecutor.execute": Entry(
        "Call a function with each worker's object.",
        "",
        {"fn": "The function, whose argument is the object of start().", **_CALLBACKS},
        _BY_RANK,
        _FAILURES,
    ),
    "RayExecutor.run": Entry(
        "Call a function in each worker.",
        "If the function raises an exception, so does this method.",
        {**_CALL, **_CALLBACKS},
        _BY_RANK,
        _FAILURES,
    ),
    "RayExecutor.run_remote": Entry(
        "Start a function in each worker without waiting for it.",
        "",
        dict(_CALL),
        "Ray's references to the results, in the order of the ranks.",
    ),
    "RayExecutor.execute_single": Entry(
        "Call a function with the object of rank 0.",
        "",
        {"fn": "The function, whose argument is the object of start()."},
        "What the function returned.",
    ),
    "RayExecutor.shutdown": Entry("End the workers and release their resources.", "This may be called twice."),
    "ElasticRayExecutor.create_settings": Entry(
        "Return settings for ElasticRayExecutor.",
        "",
        {
            "min_num_proc": "The fewest workers that the job may run with.",
            "max_num_proc": "The most workers that the job may run with.",
            "reset_limit": "Fail after this many resets.",
            "elastic_timeout": "Seconds to wait for enough slots.",
            "timeout_s": "Seconds for a worker to start, and for ranks to meet.",
            "ssh_identity_file": "Has no effect.",
            "nics": "Names of the network interfaces to use.",
            "min_np": "Deprecated; use `min_num_proc`.",
            "max_np": "Deprecated; use `max_num_proc`.",
            "kwargs": "Other settings of Horovod's ElasticSettings.",
        },
        "The settings.",
    ),
    "ElasticRayExecutor.start": Entry("Connect to the cluster.", "run() starts the workers."),
    "ElasticRayExecutor.run": Entry(
        "Call a function in workers that come and go with the cluster.",
        "",
        {"worker_fn": "The function, which takes no arguments and uses hvd.elastic.run.", **_CALLBACKS},
        "What the workers of the last generation returned, in the order of the ranks.",
        {"RuntimeError": "The job could not go on."},
    ),
    "ElasticRayExecutor.shutdown": Entry("End a job that still runs.", "After run() there is nothing to end."),
    "HorovodTrainer.fit": Entry(
        "Train.",
        returns="Ray's Result.",
        raises={
            "NotEnoughResourcesError": "The cluster is too small for the workers, and no nodes joined within "
            "`placement_group_timeout_s`. Ray itself would wait without a limit."
        },
    ),
    "HorovodConfig.to_dict": Entry(
        "Return the options that Ray's dashboard shows, without the secret.", returns="The options by name."
    ),
}
METHODS = {
    "shared": SHARED,
    "torch": TORCH,
    "tensorflow": TENSORFLOW,
    "keras": KERAS,
    "jax": JAX,
    "mxnet": MXNET,
    "data": DATA,
    "ray": RAY,
}
