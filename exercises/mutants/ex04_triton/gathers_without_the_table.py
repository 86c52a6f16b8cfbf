"""you read block i of the cache: the table says which one it is

Fails: test_the_table_leads_to_the_rows, test_the_context_ends_inside_its_block
"""


@triton.jit
def gather_kernel(out_ptr, cache_ptr, block_table_ptr, context, D: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    token = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    at = token[:, None] * D + tl.arange(0, D)[None, :]
    mask = (token < context)[:, None]
    tl.store(out_ptr + at, tl.load(cache_ptr + at, mask=mask), mask=mask)
