"""What computing and copying take on the device at hand, measured once, for preemption="auto"."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedModel

from minibatcher.memory.giving_way import GivingWay
from minibatcher.memory.pool import KVPool


@torch.inference_mode()
def giving_way(
    model: PreTrainedModel, layers: Sequence[tuple[int, int]], block_size: int, tokens: int = 512, blocks: int = 64
) -> GivingWay:
    """layers: (kv heads, head size) of each. tokens, blocks: a prompt and a copy that stand for long ones.

    A copy to the CPU stands for the way back too. Attention is part of the time of a token.
    """
    pool = KVPool(layers, blocks, block_size, model.dtype, model.device, num_cpu_blocks=blocks)

    def forward(n: int) -> float:
        ids = torch.zeros(1, n, dtype=torch.int64, device=model.device)
        return seconds(lambda: model(input_ids=ids, use_cache=False, logits_to_keep=1), model.device)

    def copy(n: int) -> float:
        numbers = list(range(n))
        return seconds(lambda: pool.copy_out(numbers, numbers), model.device)

    one, many = copy(1), copy(blocks)
    block = max(0.0, many - one) / (blocks - 1)
    return GivingWay(token=forward(tokens) / tokens, step=forward(1), pair=0.0, swap=max(0.0, one - block), block=block)


def seconds(function: Callable[[], object], device: torch.device) -> float:
    """The shortest of three runs, after one to warm up."""
    times = []
    for _ in range(4):
        synchronize(device)
        begin = time.perf_counter()
        function()
        synchronize(device)
        times.append(time.perf_counter() - begin)
    return min(times[1:])


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
