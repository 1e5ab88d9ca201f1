# SPDX-License-Identifier: Apache-2.0
"""Train a model, serve it over HTTP, and send it a request.

python examples/ray/serve.py
python examples/ray/serve.py --stay     # serves until Ctrl-C; from another terminal:
curl -d '{"images": [[[0, 0, 5, ...]]]}' http://127.0.0.1:8000
"""

from __future__ import annotations

import argparse
import json
import signal
import urllib.request
from pathlib import Path
from typing import Any

try:
    import digits
    import ray
    import torch
    from ray import serve
    from ray.train import Checkpoint
    from sklearn.datasets import load_digits
    from starlette.requests import Request
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[ray,examples]'") from None


@serve.deployment(ray_actor_options={"num_cpus": 0.5})  # type: ignore[misc]
class Reader:
    """Service that answers {"images": [8 rows of 8 numbers from 0 to 16, ...]} with {"digits": [...]}."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.model = digits.network().eval()
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, digits.WEIGHTS), weights_only=True)
        self.model.load_state_dict(state["model"])

    async def __call__(self, request: Request) -> dict[str, Any]:
        images = torch.tensor((await request.json())["images"], dtype=torch.float32) / 16
        with torch.no_grad():
            return {"digits": self.model(images).argmax(dim=1).tolist()}


def ask(url: str, images: list[Any]) -> list[int]:
    request = urllib.request.Request(url, json.dumps({"images": images}).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: list[int] = json.load(answer)["digits"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--stay", action="store_true", help="serve until Ctrl-C")
    parser.add_argument("--output", type=Path, default=Path("example-output/ray"))
    options = parser.parse_args()
    ray.init()
    result = digits.fit(options.workers, options.epochs, options.output)
    print(f"trained: accuracy {result.metrics['accuracy']:.1%}")

    serve.start(http_options={"port": options.port})
    serve.run(Reader.bind(result.checkpoint))
    bunch = load_digits()
    url = f"http://127.0.0.1:{options.port}"
    answers = ask(url, bunch.images[-100:].tolist())
    right = sum(int(found == label) for found, label in zip(answers, bunch.target[-100:], strict=True))
    print(f"served at {url}: {right} of {len(answers)} digits read correctly")
    if options.stay:
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    serve.shutdown()


if __name__ == "__main__":
    main()
