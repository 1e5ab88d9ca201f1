# SPDX-License-Identifier: Apache-2.0
"""Program of each rank of test_libraries_cuda.py: training with Lightning or Accelerate over the horovod backend.

It runs on the one GPU that ranks share, or on the processor (`cpu`).
"""

import os
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist

import horovod.torch.distributed  # noqa: F401 - registers the backend

LIBRARY, KIND = sys.argv[1:]
FEATURES, ROWS = 64, 32


def start() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))


def batches() -> torch.Tensor:
    return torch.randn(ROWS, FEATURES, generator=torch.Generator().manual_seed(7))


def trained_alone() -> list[torch.Tensor]:
    """Return the weights that one process reaches with the rows of both ranks' batches together."""
    model = start()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches().reshape(4, -1, FEATURES):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return [it.detach() for it in model.parameters()]


def with_lightning() -> torch.nn.Module:
    warnings.simplefilter("ignore")
    import lightning

    import horovod.torch.distributed.lightning  # noqa: F401 - registers the strategy

    class Line(lightning.LightningModule):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.model = start()

        def training_step(self, batch: Any, _index: int) -> Any:
            assert batch.device.type == KIND, batch.device
            return self.model(batch).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    line = Line()
    kind = "gpu" if KIND == "cuda" else KIND
    trainer = lightning.Trainer(
        strategy="horovod", accelerator=kind, max_epochs=1, logger=False, enable_checkpointing=False,
        # The sampler would shuffle.
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    rows = batches()[int(os.environ["HOROVOD_RANK"]) :: 2]
    trainer.fit(line, torch.utils.data.DataLoader(rows, batch_size=ROWS // 8))
    assert trainer.world_size == 2
    return line.model


def with_accelerate() -> torch.nn.Module:
    os.environ["LOCAL_RANK"] = "0"  # Accelerate chooses the GPU by this number, and there is one GPU
    dist.init_process_group("horovod")
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=KIND == "cpu")
    assert accelerator.device.type == KIND, accelerator.device
    assert accelerator.num_processes == 2
    model = accelerator.prepare(start())
    optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    loader = accelerator.prepare(torch.utils.data.DataLoader(batches(), batch_size=ROWS // 8))
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
    return accelerator.unwrap_model(model)


def main() -> None:
    model = with_lightning() if LIBRARY == "lightning" else with_accelerate()
    assert dist.get_backend() == "horovod", dist.get_backend()
    for parameter, wanted in zip(model.parameters(), trained_alone(), strict=True):
        ours = parameter.detach().to(KIND)  # Lightning has moved it to the host
        everybodys = [torch.empty_like(ours) for _ in range(2)]
        dist.all_gather(everybodys, ours)
        assert torch.equal(*everybodys)
        torch.testing.assert_close(ours.cpu(), wanted, rtol=1e-4, atol=1e-5)
    print("all checks passed", flush=True)
    dist.destroy_process_group()


main()
