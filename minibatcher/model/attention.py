"""Attention over a flat batch, through block tables, in plain PyTorch; and how the model finds it.

The engine runs the model as transformers ships it. While it runs, each attention layer hands the queries, keys and
values of the whole flat batch, after rotary embedding, to the function in `CURRENT`. It writes the new keys and values
into the pool and lets every token see its own request's tokens up to itself.

Why a context variable and not a keyword argument: some models (StableLM) do not pass extra arguments on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from minibatcher.memory.pool import KVPool
from minibatcher.model.batch import FlatBatch, slots_of
from minibatcher.request import Request

NAME = "minibatcher"


class Attend(Protocol):
    """query `[T, heads, head_dim]`, key and value `[T, kv_heads, head_dim]` -> output `[T, heads, head_dim]`."""

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor: ...


class Attention(Protocol):
    """A backend. It keeps the requests' tables between steps, so that a step touches only what changed."""

    def begin(self, request: Request) -> None:
        """The lane has a new request, or one that came back with other blocks."""

    def prepare(self, batch: FlatBatch) -> Attend:
        """What all layers share, done once a step."""


@dataclass
class Piece:
    """Rows `start` to `end` of the flat batch, attended to in one call.

    Either a chunk: several tokens of one request; slots is [1, context].
    Or a group of decodes: one token each of B requests; slots is [B, longest context].
    """

    start: int
    end: int
    contexts: list[int]  # tokens of each request in the cache, the new ones included; the last is the longest
    slots: Tensor  # where they lie in the pool; behind its end a row names its own first slot, masked

    @property
    def num_new(self) -> int:
        """New tokens a request: 1 in a group of decodes."""
        return (self.end - self.start) // len(self.contexts)


class TorchAttention:
    """Gather keys and values from their blocks, then PyTorch's attention: decodes together, chunks one by one."""

    def __init__(self, pool: KVPool, max_num_seqs: int, max_model_len: int) -> None:
        self.pool = pool
        # Row = lane, column = position, entry = slot. A step writes only its own tokens' entries.
        self.slots = torch.zeros(max_num_seqs, max_model_len, dtype=torch.int32, device=pool.device)
        # The rows of those who decode, by ascending context; to a place that is kept, and all at once. A new tensor for
        # each run of like contexts took 43 us a request (256 of them at context 1,000), this takes 4.
        self.sorted = torch.zeros_like(self.slots)

    def begin(self, request: Request) -> None:
        """Entries behind the last token name the first slot. They are masked, but are read, and must not be NaN."""
        row = self.slots[request.lane]
        row.fill_(request.block_table[0] * self.pool.block_size)
        row[: request.num_computed] = slots_of(request, 0, request.num_computed, self.pool.block_size)

    def prepare(self, batch: FlatBatch) -> Gather:
        table, alone = self.slots, batch.num_singles
        lanes = torch.tensor([r.lane for r, _ in batch.work[:alone]], dtype=torch.int64, device=table.device)
        table[lanes, batch.positions[:alone]] = batch.slot_mapping[:alone].int()
        pieces = []
        contexts = [request.num_computed + 1 for request, _ in batch.work[:alone]]
        if alone:
            longest = contexts[-1]
            torch.index_select(table[:, :longest], 0, lanes, out=self.sorted[:alone, :longest])
        for start, end in _alike(contexts):
            pieces.append(Piece(start, end, contexts[start:end], self.sorted[start:end, : contexts[end - 1]]))
        row = alone
        for request, n in batch.work[alone:]:
            context = request.num_computed + n
            table[request.lane, request.num_computed : context] = batch.slot_mapping[row : row + n]
            pieces.append(Piece(row, row + n, [context], table[request.lane : request.lane + 1, :context]))
            row += n
        return Gather(batch, pieces, self.pool)


@dataclass
class Gather:
    """`attend` for one step."""

    batch: FlatBatch
    pieces: list[Piece]
    pool: KVPool
    masks: dict[tuple[int, int | None], Tensor | None] = field(default_factory=dict)  # once a step, not once a layer

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        self.pool.write(layer, self.batch.slot_mapping, key, value)
        outputs = []
        for number, piece in enumerate(self.pieces):
            rows, shape = slice(piece.start, piece.end), (len(piece.contexts), piece.num_new)
            q = query[rows].unflatten(0, shape)
            if piece.contexts[-1] == piece.num_new:  # all that may be seen is new, and need not be read back
                k, v = key[rows].unflatten(0, shape), value[rows].unflatten(0, shape)
            else:
                k, v = self.pool.read(layer, piece.slots)
            outputs.append(_attention(q, k, v, self.mask(number, window, query), scale, softcap).flatten(0, 1))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def mask(self, number: int, window: int | None, like: Tensor) -> Tensor | None:
        """What piece `number` may see, added to its scores: [B, 1, num_new, longest context]; None is everything."""
        key = (number, window)
        if key not in self.masks:
            self.masks[key] = _mask(self.pieces[number], window, like)
        return self.masks[key]


def _mask(piece: Piece, window: int | None, like: Tensor) -> Tensor | None:
    longest = piece.contexts[-1]
    if piece.num_new == 1 and piece.contexts[0] == longest and (window is None or longest <= window):
        return None
    contexts = torch.tensor(piece.contexts, device=like.device)[:, None, None, None]
    row = torch.arange(piece.num_new, device=like.device)[None, None, :, None]
    own = contexts - piece.num_new + row  # the position at which the row's token stands
    seen = torch.arange(longest, device=like.device)
    visible = seen <= own
    if window is not None:
        visible &= seen > own - window
    return torch.zeros(visible.shape, dtype=like.dtype, device=like.device).masked_fill_(~visible, -torch.inf)


TOGETHER = 2048  # tokens gathered in one call


def _alike(contexts: list[int]) -> list[tuple[int, int]]:
    """Cut ascending contexts into runs whose longest is at most twice the shortest, of at most TOGETHER tokens.

    A batched call costs all its rows as much as the longest: 15 rows at 60 tokens with one at 1,800 took 570 ms a
    step in one call, 197 in runs. And what is gathered for a call should still be in the processor's cache when it is
    attended to: 16 rows at 1,000 took 454 ms a step in one call, 327 two by two.
    """
    cuts = []
    start = 0
    for i in range(1, len(contexts) + 1):
        longest = contexts[i] if i < len(contexts) else torch.inf
        if longest > 2 * contexts[start] or longest * (i + 1 - start) > TOGETHER:
            cuts.append((start, i))
            start = i
    return cuts


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, softcap: float | None) -> Tensor:
    """q `[B, n, heads, D]`, k and v `[B, context, kv_heads, D]` -> `[B, n, heads, D]`."""
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    kv_heads = k.shape[1]
    if softcap is not None:
        q = q.transpose(1, 2).unflatten(1, (kv_heads, -1))  # [B, kv_heads, heads that share them, n, D]
        scores = softcap * torch.tanh(q @ k.unsqueeze(2).mT * (scale / softcap))
        scores = scores if mask is None else scores + mask.unsqueeze(2)
        out = scores.softmax(dim=-1, dtype=torch.float32).to(v.dtype) @ v.unsqueeze(2)
        return out.flatten(1, 2).transpose(1, 2)
    if q.shape[1] > 1:
        return scaled_dot_product_attention(q.transpose(1, 2), k, v, mask, scale=scale, enable_gqa=True).transpose(1, 2)
    # A decode has one row: the heads that share keys become rows beside each other, so a key is read once for all.
    q = q.squeeze(1).unflatten(1, (kv_heads, -1))
    return scaled_dot_product_attention(q, k, v, mask, scale=scale).flatten(1, 2).unsqueeze(1)


# -- how the model finds it -------------------------------------------------------------------------------------------

CURRENT: ContextVar[Attend] = ContextVar("attend, for the batch that the model is being run on")


@contextmanager
def attending(model: PreTrainedModel, function: Attend) -> Iterator[None]:
    """Let the model attend by `function`, and leave it as it was.

    The attention implementation is state of the model, and two engines may share one model.
    """
    own = model.config._attn_implementation
    token = CURRENT.set(function)
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(own)
        CURRENT.reset(token)


def _interface(module, query, key, value, attention_mask, *, scaling=None, sliding_window=None, softcap=None, **kwargs):
    """What transformers calls: query `[1, heads, T, D]`, key and value `[1, kv_heads, T, D]` -> `[1, T, heads, D]`."""
    if kwargs.get("s_aux") is not None:
        raise ValueError("this model's attention has sinks (s_aux), which are not built yet")
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    return CURRENT.get()(module.layer_idx, q, k, v, scale, sliding_window, softcap)[None], None


AttentionInterface.register(NAME, _interface)
