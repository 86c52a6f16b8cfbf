"""you forgot `scale`

Fails: test_scores_of_whole_blocks
"""


@triton.jit
def scores_kernel(
    out_ptr, query_ptr, cache_ptr, block_table_ptr, context, scale, D: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    index = tl.program_id(0)
    block = tl.load(block_table_ptr + index)
    offset, dims = tl.arange(0, BLOCK_SIZE), tl.arange(0, D)
    written = index * BLOCK_SIZE + offset < context
    query = tl.load(query_ptr + dims)
    place = (block * BLOCK_SIZE + offset)[:, None] * D + dims[None, :]
    key = tl.load(cache_ptr + place, mask=written[:, None], other=0.0)
    score = tl.sum(query[None, :] * key, axis=1)
    tl.store(out_ptr + index * BLOCK_SIZE + offset, tl.where(written, score, float("-inf")))
