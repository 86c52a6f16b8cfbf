"""you read what is behind the context

Fails: test_the_context_ends_inside_its_block
"""


@triton.jit
def gather_kernel(out_ptr, cache_ptr, block_table_ptr, context, D: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    index = tl.program_id(0)
    block = tl.load(block_table_ptr + index)
    offset, dims = tl.arange(0, BLOCK_SIZE), tl.arange(0, D)
    token = index * BLOCK_SIZE + offset
    tile = tl.load(cache_ptr + (block * BLOCK_SIZE + offset)[:, None] * D + dims[None, :])
    tl.store(out_ptr + token[:, None] * D + dims[None, :], tile, mask=(token < context)[:, None])
