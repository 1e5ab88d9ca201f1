# SPDX-License-Identifier: Apache-2.0
"""Train a small GPT to write a made-up language on several ranks.

    horovodrun -np 2 python gpt.py
    horovodrun -np 2 python gpt.py --layers 6 --heads 8 --width 512 --context 256      # 19 M parameters

A small grammar generates the text. Gradients are clipped after they have been averaged.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time

try:
    import torch
    from gpt_model import Gpt, Size, parameter_count
    from placement import pin
    from torch import nn

    import horovod.torch as hvd
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[examples]'") from None

_GRAMMAR = {
    "sentence": ("{subject} {verb} {object}.", "{subject} {verb} {object}, and {subject} {verb} {object}."),
    "subject": ("the {adjective} {noun}", "a {noun}", "every {noun}"),
    "object": ("the {noun}", "a {adjective} {noun}", "nothing", "the {noun} of the {noun}"),
    "noun": ("dancer", "circle", "village", "drum", "river", "singer", "evening", "ribbon"),
    "verb": ("follows", "hears", "leads", "crosses", "turns around", "remembers"),
    "adjective": ("slow", "bright", "patient", "small", "old", "quiet"),
}


def expand(rule: str, source: random.Random) -> str:
    text = source.choice(_GRAMMAR[rule])
    while "{" in text:
        before, _, rest = text.partition("{")
        name, _, after = rest.partition("}")
        text = before + expand(name, source) + after
    return text


def make_text(sentences: int) -> str:
    """Return a text that is equal on every rank."""
    source = random.Random(0)
    return " ".join(expand("sentence", source) for _ in range(sentences))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16, help="for each rank")
    parser.add_argument(
        "--lr", type=float, default=1e-3, help="for one rank: it is multiplied by the root of their number"
    )
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--report-every", type=int, default=20, help="steps")
    parser.add_argument(
        "--compression", choices=("none", "fp16", "bf16"), default="none", help="of gradients on the way"
    )
    return parser.parse_args()


def draw_batch(tokens: torch.Tensor, size: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """Return pieces of the text from random positions. Every rank has its own generator."""
    starts = torch.randint(len(tokens) - length, (size,), generator=generator)
    return torch.stack([tokens[start : start + length + 1] for start in starts.tolist()])


def held_out_loss(model: Gpt, tokens: torch.Tensor) -> float:
    """Return the mean loss over all ranks, each of which reads its own part."""
    length = model.size.context
    rows = min(len(tokens) // (length + 1), 16 * hvd.size())
    pieces = tokens[: rows * (length + 1)].view(rows, length + 1)[hvd.rank() :: hvd.size()]
    with torch.no_grad():
        return float(hvd.allreduce(model.loss(pieces).cpu(), name="held-out loss"))


def train(model: Gpt, optimizer: torch.optim.Optimizer, text: torch.Tensor, options: argparse.Namespace) -> float:
    cut = len(text) * 9 // 10
    generator = torch.Generator().manual_seed(hvd.rank())
    device = model.positions.device
    started, found = time.perf_counter(), math.inf
    for step in range(1, options.steps + 1):
        optimizer.zero_grad()
        loss = model.loss(draw_batch(text[:cut], options.batch_size, options.context, generator).to(device))
        loss.backward()
        # Clip the norm of the average: complete the reductions, clip, then step without reducing again.
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        if step % options.report_every == 0 or step == options.steps:
            found = held_out_loss(model, text[cut:].to(device))
            speed = step * options.batch_size * options.context * hvd.size() / (time.perf_counter() - started)
            if hvd.rank() == 0:
                print(f"step {step:>5}/{options.steps}  held-out loss {found:.4f}  {speed:,.0f} tokens/s", flush=True)
    return found


def main() -> int:
    options = parse_arguments()
    hvd.init()
    device = pin()
    text = make_text(sentences=4000)
    letters = sorted(set(text))
    tokens = torch.tensor([letters.index(letter) for letter in text])

    torch.manual_seed(1)
    model = Gpt(Size(len(letters), options.context, options.layers, options.heads, options.width)).to(device)
    # Adam's steps do not grow with the gradient, so scale the rate only by the root of the batch size.
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr * math.sqrt(hvd.size()))
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=getattr(hvd.Compression, options.compression),
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    if hvd.rank() == 0:
        print(f"{parameter_count(model):,} parameters, {len(letters)} letters, {hvd.size()} rank(s), {device}")
    train(model, optimizer, tokens, options)
    if hvd.rank() == 0:
        start = torch.tensor([[letters.index(letter) for letter in "the "]], device=device)
        written = model.continue_text(start, 160, torch.Generator(device).manual_seed(0))
        print("it writes: " + "".join(letters[token] for token in written[0].tolist()))
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
