"""Exercise 4: attention over pages (8 points; the bonus in Triton is in ex04_triton.py).

    minibatcher grade ex04              the board
    minibatcher grade 4.1 --hint        one more hint

A decode compares one query with all keys of its request, and mixes their values:

    weights = softmax(scale * q k^T)        out = weights v

Keys and values lie in blocks, anywhere in the pool, and a kernel that reads them has room for a few at a time. So the
softmax is computed bit by bit (Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def online_softmax(tiles: Iterable[tuple[Tensor, Tensor]], head_dim: int) -> Tensor:
    """Task 4.1 (3 points, 35 minutes; after 50 take a hint): softmax over tiles that come one by one.

    Keep three running values: the highest score so far, the sum of exp(score - highest), and the sum of
    exp(score - highest) * value. When a tile brings a higher score, what was summed before is too large by a known
    factor: shrink it.

    tiles   pairs of scores [n] and values [n, head_dim], of any n of 1 or more. A score of -inf is a key that may not
            be seen. Each pair is valid only until the next one is asked for: its memory is used again.

    Returns softmax(all scores) @ all values, [head_dim]; zeros when no key may be seen, or no tile comes.

    >>> scores = torch.tensor([1.0, 2.0, 3.0, 4.0])
    >>> values = torch.eye(4)
    >>> whole = scores.softmax(0) @ values
    >>> torch.allclose(online_softmax([(scores[:1], values[:1]), (scores[1:], values[1:])], head_dim=4), whole)
    True
    """
    raise NotImplementedError("Task 4.1")


def paged_decode(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, block_table: list[int], context: int, scale: float
) -> Tensor:
    """Task 4.2 (3 points, 30 minutes; after 45 take a hint): decode attention through a block table.

    Gather the request's keys and values in the order of its tokens, and attend. Token j lies in block
    `block_table[j // block_size]`, at place `j % block_size` in it. Slots that were never written hold anything, even
    NaN, and 0 * NaN is NaN: what is behind the context must not be read.

    query         [num_heads, head_dim]
    key_cache     [num_blocks, block_size, num_kv_heads, head_dim]; value_cache has the same shape
    block_table   the request's blocks; there may be more than the context needs
    context       how many tokens of the request are in the pool, 1 or more

    num_heads is a multiple of num_kv_heads: the first `num_heads // num_kv_heads` query heads use key/value head 0, as
    many more use head 1, and so on (grouped-query attention). Returns [num_heads, head_dim].

    >>> cache = torch.arange(6.0).view(3, 2, 1, 1)          # three blocks of two tokens, one head of one number
    >>> query = torch.zeros(1, 1)                           # fits all keys alike: the answer is the mean of the values
    >>> paged_decode(query, cache, cache, block_table=[2, 0], context=3, scale=1.0)      # of 4, 5 and 0
    tensor([[3.]])
    """
    raise NotImplementedError("Task 4.2")


def merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Task 4.3 (2 points, 25 minutes; after 40 take a hint): merge two partial results.

    A long context can be split into parts that are attended to at the same time. Each part gives its own answer and the
    logarithm of its sum of weights; with that the answers can be put together as if there had been one softmax
    (Flash-Decoding, Dao et al. 2023).

    out   [num_heads, head_dim], each row softmax(scores of the part) @ values of the part
    lse   [num_heads], log(sum(exp(scores of the part))), of any size; -inf, with out = 0, for a part without a key

    Returns out and lse of both parts together.

    >>> out, lse = merge(torch.tensor([[2.0]]), torch.tensor([0.0]), torch.tensor([[8.0]]), torch.tensor([0.0]))
    >>> out                 # equally strong: the mean
    tensor([[5.]])
    """
    raise NotImplementedError("Task 4.3")
