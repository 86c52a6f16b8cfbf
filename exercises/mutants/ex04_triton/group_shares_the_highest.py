"""you kept one highest score for all heads: each has its own, and a small one loses all its weights

Fails: test_great_scores_of_a_group
"""


@triton.jit
def grouped_kernel(
    out_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    block_table_ptr,
    context,
    scale,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    head, offset, dims = tl.arange(0, HEADS), tl.arange(0, BLOCK_SIZE), tl.arange(0, D)
    tile = head[:, None] * D + dims[None, :]
    query = tl.load(query_ptr + tile)
    highest = tl.full([], -1.0e30, tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    mixed = tl.zeros([HEADS, D], tl.float32)
    for index in range(0, tl.cdiv(context, BLOCK_SIZE)):
        block = tl.load(block_table_ptr + index)
        written = index * BLOCK_SIZE + offset < context
        place = (block * BLOCK_SIZE + offset)[:, None] * D + dims[None, :]
        key = tl.load(key_ptr + place, mask=written[:, None], other=0.0)
        score = tl.sum(query[:, None, :] * key[None, :, :], axis=2) * scale
        score = tl.where(written[None, :], score, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(tl.max(score, axis=1), axis=0))
        shrink = tl.exp(highest - new_highest)
        weight = tl.exp(score - new_highest)
        value = tl.load(value_ptr + place, mask=written[:, None], other=0.0)
        total = total * shrink + tl.sum(weight, axis=1)
        mixed = mixed * shrink + tl.sum(weight[:, :, None] * value[None, :, :], axis=1)
        highest = new_highest
    tl.store(out_ptr + tile, mixed / total[:, None])
