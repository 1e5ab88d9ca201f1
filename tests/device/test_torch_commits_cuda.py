# SPDX-License-Identifier: Apache-2.0
"""Where commits of a model on a GPU are stored, on a machine that has one."""

import pytest
import torch

from horovod.common.context import default_context
from horovod.common.settings import Settings
from horovod.torch.elastic import TorchState

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this machine")


@pytest.mark.parametrize("where", ["device", "host"])
def test_commits_live_where_the_setting_says(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_context, "_settings", Settings({"HOROVOD_ELASTIC_COMMIT": where}))
    model = torch.nn.Linear(2048, 64, device="cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01, device="cuda"), capturable=True)
    state = TorchState(model, optimizer)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(4, 2048, device="cuda")).square().sum().backward()
        optimizer.step()

    for _ in range(3):
        step()
        state.save()
    moments = state._handlers["optimizer"].slots.current["state"][0]["exp_avg"]
    weight = state._handlers["model"].slots.current["weight"]
    for kept in (moments, weight):
        assert kept.is_cuda == (where == "device")
        assert kept.is_cuda or kept.is_pinned()
    saved = [it.detach().clone() for it in model.parameters()]
    step()
    after = [it.detach().clone() for it in model.parameters()]
    state.restore()
    for got, wanted in zip(model.parameters(), saved, strict=True):
        torch.testing.assert_close(got.detach(), wanted, rtol=0, atol=0)
    step()  # repeat the step from the same weights with the same moments
    for got, wanted in zip(model.parameters(), after, strict=True):
        torch.testing.assert_close(got.detach(), wanted, rtol=1e-6, atol=1e-6)
