# SPDX-License-Identifier: Apache-2.0
"""Whole scripts over the horovod backend, or under horovodrun over another one.

They use Lightning, Accelerate, Transformers, Ignite and WebDataset; one relies on autoloading.
"""

import importlib.util
import json
import sys

import pytest
from testkit import processes
from testkit.places import ROOT, python_path

LIMIT_S = 150

pytestmark = pytest.mark.timeout(LIMIT_S + 20)
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
HOROVODRUN = ["-m", "horovod.runner.launch", "-np", "2", sys.executable]

SUM = """
import faulthandler
faulthandler.dump_traceback_later(120, exit=True)
import torch, torch.distributed as dist
dist.init_process_group("horovod")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
assert dist.get_backend() == "horovod"
assert total.item() == 3, total
print(f"sum {int(total.item())}", flush=True)  # in one piece: torchrun lets all ranks write to one pipe
dist.destroy_process_group()
"""

WORLDS = """
import horovod.torch as hvd
for again in range(2):
    hvd.init()
    place = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]
    assert place == [dist.get_rank(), 2, dist.get_rank(), 2, 0, 1], place
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [2, 2, 2]
    hvd.shutdown()
"""

LIGHTNING = """
import faulthandler
faulthandler.dump_traceback_later(120, exit=True)
import warnings; warnings.simplefilter("ignore")
import lightning, torch, torch.distributed as dist
import horovod.torch.distributed.lightning
torch.set_num_threads(1)

class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return self.line(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

lightning.seed_everything(1, verbose=False)
model = Line()
trainer = lightning.Trainer(
    strategy="horovod", accelerator="cpu", DEVICES max_steps=3, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, barebones=False,
)
trainer.fit(model, torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=4))
assert dist.get_backend() == "horovod" and trainer.world_size == 2
weights = [None, None]
dist.all_gather_object(weights, model.line.weight.tolist())
assert weights[0] == weights[1], weights
print("weights agree", flush=True)
"""

ACCELERATE = """
import faulthandler
faulthandler.dump_traceback_later(120, exit=True)
import sys, torch, torch.distributed as dist
import horovod.torch.distributed
from accelerate import Accelerator
if sys.argv[1] == "horovod":
    dist.init_process_group("horovod")  # Accelerate takes the group that exists
accelerator = Accelerator(cpu=True)
torch.manual_seed(accelerator.process_index)
model = torch.nn.Linear(4, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(3):
    optimizer.zero_grad()
    accelerator.backward(model(torch.randn(8, 4)).square().mean())
    optimizer.step()
weights = accelerator.gather(next(model.parameters()).detach().reshape(1, -1))
assert dist.get_backend() == sys.argv[1] and accelerator.num_processes == 2
assert torch.equal(weights[0], weights[1]), weights
print("weights agree", flush=True)
dist.destroy_process_group()
"""


# The scripts below name neither horovod nor the CPU, like scripts written for GPUs. Each rank takes every other batch,
# so the batches of a single process are twice as large.
ACCELERATOR = """
import faulthandler
faulthandler.dump_traceback_later(120, exit=True)
import torch, torch.distributed as dist
from accelerate import Accelerator

def train(size, prepare=lambda *objects: objects, backward=torch.Tensor.backward):
    torch.manual_seed(1)
    model, data = torch.nn.Linear(4, 1), torch.randn(24, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    wrapped, optimizer, loader = prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=size))
    for batch in loader:
        optimizer.zero_grad()
        backward(wrapped(batch).square().mean())
        optimizer.step()
    return model.weight

accelerator = Accelerator()
together = train(4, accelerator.prepare, accelerator.backward)
print(f"{accelerator.num_processes} processes", flush=True)
if accelerator.num_processes == 2:
    torch.testing.assert_close(together, train(8))
dist.destroy_process_group()
"""

TRAINER = """
import faulthandler
faulthandler.dump_traceback_later(120, exit=True)
import sys, torch, torch.distributed as dist
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

class InOrder(Trainer):
    def _get_train_sampler(self, *arguments):
        return torch.utils.data.SequentialSampler(self.train_dataset)

torch.manual_seed(0)
sizes = dict(
    vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8,
    hidden_dropout_prob=0, attention_probs_dropout_prob=0,
)
model = BertForSequenceClassification(BertConfig(**sizes))
data = [{"input_ids": torch.randint(0, 20, (6,)), "labels": number % 2} for number in range(32)]
arguments = TrainingArguments(
    output_dir="out", max_steps=3, per_device_train_batch_size=int(sys.argv[1]), learning_rate=0.5, optim="sgd",
    lr_scheduler_type="constant", max_grad_norm=0, average_tokens_across_devices=False, report_to=[],
    save_strategy="no", disable_tqdm=True,
)
InOrder(model=model, args=arguments, train_dataset=data).train()
torch.save([parameter.detach() for parameter in model.parameters()], f"weights of {arguments.process_index}")
print(f"{arguments.world_size} processes", flush=True)
if dist.is_initialized():
    dist.destroy_process_group()
"""

TRANSFORMERS = """
import faulthandler
faulthandler.dump_traceback_later(120, exit=True)
import sys, torch, torch.distributed as dist
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
if sys.argv[1] == "horovod":
    import horovod.torch.distributed
    dist.init_process_group("horovod")
sizes = dict(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
model = BertForSequenceClassification(BertConfig(**sizes))
data = [{"input_ids": torch.randint(0, 20, (6,)), "labels": number % 2} for number in range(32)]
arguments = TrainingArguments(
    output_dir="out", max_steps=3, per_device_train_batch_size=4, use_cpu=True, report_to=[], save_strategy="no",
    disable_tqdm=True,
)
Trainer(model=model, args=arguments, train_dataset=data).train()
assert dist.get_backend() == sys.argv[1] and arguments.world_size == 2
weights = [None, None]
dist.all_gather_object(weights, [parameter.tolist() for parameter in model.parameters()])
assert weights[0] == weights[1]
print("weights agree", flush=True)
dist.destroy_process_group()
"""

IGNITE = """
import faulthandler
faulthandler.dump_traceback_later(120, exit=True)
import sys, torch, torch.distributed as dist
import ignite.distributed as idist
import webdataset

def train(local_rank):
    assert idist.get_world_size() == 2 and idist.backend() == sys.argv[1].removesuffix("-group")
    torch.manual_seed(idist.get_rank())
    model = torch.nn.Linear(4, 1)
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1))
    model = idist.auto_model(model)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    weights = idist.all_gather(next(model.parameters()).detach().reshape(1, -1))
    assert torch.equal(weights[0], weights[1]), weights
    shards = [shard["url"] for shard in webdataset.split_by_node({"url": number} for number in range(4))]
    assert shards == [idist.get_rank(), idist.get_rank() + 2]
    print("weights agree", flush=True)

if sys.argv[1].endswith("-group"):
    dist.init_process_group("gloo")
    train(0)
    dist.destroy_process_group()
else:
    with idist.Parallel(backend=sys.argv[1]) as parallel:
        parallel.run(train)
"""

# A script for one process, or one changed according to the warning.
PLAIN_LIGHTNING = """
import faulthandler
faulthandler.dump_traceback_later(120, exit=True)
import json, sys, lightning, torch
options = json.loads(sys.argv[1])
if options.get("strategy") == "horovod":
    import horovod.torch.distributed.lightning
torch.set_num_threads(1)

class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return self.line(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

trainer = lightning.Trainer(
    accelerator="cpu", max_steps=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, **options,
)
trainer.fit(Line(), torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4))
print(f"{trainer.world_size} processes", flush=True)
"""

PLAIN_IGNITE = """
import faulthandler
faulthandler.dump_traceback_later(120, exit=True)
import json, sys
import ignite.distributed as idist  # before torch, which begins our watch over imports
import torch
from ignite.engine import Engine

def train(local_rank):
    model = idist.auto_model(torch.nn.Linear(4, 1))
    Engine(lambda engine, batch: model(batch).sum().backward()).run([torch.ones(4)])
    print(f"{idist.get_world_size()} processes", flush=True)

with idist.Parallel(**json.loads(sys.argv[1])) as parallel:
    parallel.run(train)
"""


def run(launcher, source, folder, *words, path=None, **variables):
    program = folder / "program.py"
    program.write_text(source, encoding="utf-8")
    env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(*([path] if path else [])), **variables}
    return processes.run([sys.executable, *launcher, str(program), *words], env, LIMIT_S, cwd=folder)


def check(done, line, times=2):
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(line) == times, done.stdout + done.stderr


@pytest.mark.parametrize("launcher", [TORCHRUN, HOROVODRUN], ids=["torchrun", "horovodrun"])
def test_one_script_under_both_launchers(launcher, tmp_path):
    before, after = SUM.split("dist.destroy_process_group()")
    program = f"import horovod.torch.distributed\n{before}{WORLDS}dist.destroy_process_group(){after}"
    check(run(launcher, program, tmp_path), "sum 3")


def declare_entry_point(folder):
    """Declare the package's entry point for torch, as an installed package does; return the folder."""
    info = folder / "declared-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: declared\nVersion: 1.0\n", encoding="utf-8")
    section = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition('"torch.backends"]\n')[2]
    name, _, target = section.partition("\n")[0].partition(" = ")
    (info / "entry_points.txt").write_text(f"[torch.backends]\n{name} = {target.strip(chr(34))}\n", encoding="utf-8")
    return folder


def test_torch_finds_the_backend_by_itself_and_imports_no_engine(tmp_path):
    import torch

    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 5):
        pytest.skip("this torch loads no extensions by itself")
    path = declare_entry_point(tmp_path / "site")
    look = "import sys, torch.distributed as dist\nprint('known', 'horovod' in dist.Backend.backend_list)\n"
    look += "assert 'horovod._engine' not in sys.modules and 'horovod.torch' not in sys.modules\n"
    check(run([], look, tmp_path, path=path), "known True", times=1)
    check(run([], look, tmp_path, path=path, TORCH_DEVICE_BACKEND_AUTOLOAD="0"), "known False", times=1)
    check(run(HOROVODRUN, SUM, tmp_path, path=path), "sum 3")


@pytest.mark.parametrize("launcher", [[], HOROVODRUN], ids=["lightning's own launcher", "horovodrun"])
def test_lightning(launcher, tmp_path):
    devices = "" if launcher else "devices=2,"  # horovodrun has started both processes already
    check(run(launcher, LIGHTNING.replace("DEVICES", devices), tmp_path), "weights agree", times=2)


@pytest.mark.parametrize("backend", ["gloo", "horovod"])
@pytest.mark.parametrize("launcher", [TORCHRUN, HOROVODRUN], ids=["torchrun", "horovodrun"])
def test_accelerate(launcher, backend, tmp_path):
    check(run(launcher, ACCELERATE, tmp_path, backend), "weights agree")


@pytest.mark.checked_numbers("weights that Accelerator() trains in a script for GPUs", against="a single process")
def test_accelerator_without_arguments(tmp_path):
    path = declare_entry_point(tmp_path / "site")
    check(run(HOROVODRUN, ACCELERATOR, tmp_path, path=path), "2 processes")
    alone = run(TORCHRUN, ACCELERATOR, tmp_path, path=path)
    check(alone, "1 processes")
    assert alone.stderr.count("Accelerate sees 1 process, but this job has 2 ranks") == 2, alone.stderr


@pytest.mark.checked_numbers("weights of Transformers' Trainer in a script for GPUs", against="a single process")
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="Transformers is not installed")
def test_trainer_without_arguments(tmp_path):
    import torch

    path = declare_entry_point(tmp_path / "site")
    check(run(HOROVODRUN, TRAINER, tmp_path, "4", path=path), "2 processes")
    together = [torch.load(tmp_path / f"weights of {rank}") for rank in range(2)]
    check(run([], TRAINER, tmp_path, "8", path=path), "1 processes", times=1)
    alone = torch.load(tmp_path / "weights of 0")
    for weights in together:
        torch.testing.assert_close(weights, alone)


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="Transformers is not installed")
@pytest.mark.parametrize("backend", ["gloo", "horovod"])
def test_transformers(backend, tmp_path):
    check(run(HOROVODRUN, TRANSFORMERS, tmp_path, backend), "weights agree")


@pytest.mark.skipif(importlib.util.find_spec("ignite") is None, reason="Ignite is not installed")
@pytest.mark.parametrize("backend", ["gloo", "gloo-group", "horovod"])
def test_ignite_and_webdataset(backend, tmp_path):
    done = run(HOROVODRUN, IGNITE, tmp_path, backend)
    check(done, "weights agree")
    assert "sees 1 process" not in done.stderr, done.stderr


def check_warned(done, library, processes_seen):
    """Check that a library that sees one process of two warns once on each rank, and otherwise does not warn."""
    check(done, f"{processes_seen} processes")
    warned = done.stderr.count(f"{library} sees 1 process, but this job has 2 ranks: it trains each rank alone.")
    assert warned == (2 if processes_seen == 1 else 0), done.stderr


@pytest.mark.parametrize(
    ("launcher", "options", "processes_seen"),
    [
        (HOROVODRUN, {}, 1),
        (TORCHRUN, {}, 1),
        (HOROVODRUN, {"strategy": "ddp", "devices": 2}, 2),
        (HOROVODRUN, {"strategy": "horovod"}, 2),
    ],
    ids=["horovodrun", "torchrun", "ddp", "horovod"],
)
def test_lightning_without_a_strategy(launcher, options, processes_seen, tmp_path):
    path = declare_entry_point(tmp_path / "site")
    check_warned(run(launcher, PLAIN_LIGHTNING, tmp_path, json.dumps(options), path=path), "Lightning", processes_seen)


@pytest.mark.skipif(importlib.util.find_spec("ignite") is None, reason="Ignite is not installed")
@pytest.mark.parametrize(("options", "processes_seen"), [({}, 1), ({"backend": "gloo"}, 2)], ids=["without", "gloo"])
def test_ignite_without_a_backend(options, processes_seen, tmp_path):
    path = declare_entry_point(tmp_path / "site")
    check_warned(run(HOROVODRUN, PLAIN_IGNITE, tmp_path, json.dumps(options), path=path), "Ignite", processes_seen)
