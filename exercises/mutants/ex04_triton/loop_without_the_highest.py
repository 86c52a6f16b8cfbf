"""you exponentiated the scores themselves: subtract the highest

Fails: test_great_scores
"""


@triton.jit
def decode_kernel(
    out_ptr, query_ptr, key_ptr, value_ptr, block_table_ptr, context, scale, D: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    head = tl.program_id(0)
    offset, dims = tl.arange(0, BLOCK_SIZE), tl.arange(0, D)
    query = tl.load(query_ptr + head * D + dims)
    total = tl.full([], 0.0, tl.float32)
    mixed = tl.zeros([D], tl.float32)
    for index in range(0, tl.cdiv(context, BLOCK_SIZE)):
        block = tl.load(block_table_ptr + index)
        written = index * BLOCK_SIZE + offset < context
        place = (block * BLOCK_SIZE + offset)[:, None] * D + dims[None, :]
        key = tl.load(key_ptr + place, mask=written[:, None], other=0.0)
        score = tl.where(written, tl.sum(query[None, :] * key, axis=1) * scale, float("-inf"))
        weight = tl.exp(score)
        value = tl.load(value_ptr + place, mask=written[:, None], other=0.0)
        total = total + tl.sum(weight, axis=0)
        mixed = mixed + tl.sum(weight[:, None] * value, axis=0)
    tl.store(out_ptr + head * D + dims, mixed / total)
