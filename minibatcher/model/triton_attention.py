"""Attention by the Triton kernels of `kernels/`: the blocks are read where they lie, and nothing is gathered."""

from __future__ import annotations

import torch
from torch import Tensor

from minibatcher.memory.pool import KVPool
from minibatcher.model.attention import Attend
from minibatcher.model.batch import FlatBatch
from minibatcher.request import Request
from minibatcher_kernels.kv_write import kv_write
from minibatcher_kernels.paged_attention import paged_attention


class TritonAttention:
    """Keeps the block tables on the device between steps, and tells the kernel whose rows are whose."""

    def __init__(self, pool: KVPool, max_num_seqs: int, max_model_len: int) -> None:
        self.pool = pool
        max_blocks = -(-max_model_len // pool.block_size)
        self.tables = torch.zeros(max_num_seqs, max_blocks, dtype=torch.int32, device=pool.device)  # row = lane
        self.filled = [0] * max_num_seqs  # how much of the lane's row is its request's

    def begin(self, request: Request) -> None:
        """The lane has a new request, or one that came back with other blocks."""
        self.filled[request.lane] = 0

    def prepare(self, batch: FlatBatch) -> Attend:
        device = self.pool.device
        lanes, context_lens, cu_seqlens_q = [], [], [0]
        for request, n in batch.work:
            lane, table = request.lane, request.block_table
            if self.filled[lane] < len(table):
                new = torch.tensor(table[self.filled[lane] :], dtype=torch.int32)
                self.tables[lane, self.filled[lane] : len(table)] = new.to(device)
                self.filled[lane] = len(table)
            lanes.append(lane)
            context_lens.append(request.num_computed + n)
            cu_seqlens_q.append(cu_seqlens_q[-1] + n)
        tables = self.tables[torch.tensor(lanes).to(device)]
        contexts = torch.tensor(context_lens, dtype=torch.int32).to(device)
        bounds = torch.tensor(cu_seqlens_q, dtype=torch.int32).to(device)
        longest = max(n for _, n in batch.work)

        def attend(
            layer: int,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            scale: float,
            window: int | None,
            softcap: float | None,
        ) -> Tensor:
            keys, values = self.pool.keys[layer], self.pool.values[layer]
            kv_write(key, value, keys, values, batch.slot_mapping)
            return paged_attention(query, keys, values, tables, contexts, bounds, scale, window, softcap, longest)

        return attend
