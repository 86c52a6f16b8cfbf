"""you masked the keys and not the values: 0 * NaN is NaN

Fails: test_attention_of_one_head, test_unwritten_slots_in_the_loop, test_great_scores, test_a_run_for_each_head
"""


@triton.jit
def decode_kernel(
    out_ptr, query_ptr, key_ptr, value_ptr, block_table_ptr, context, scale, D: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    head = tl.program_id(0)
    offset, dims = tl.arange(0, BLOCK_SIZE), tl.arange(0, D)
    query = tl.load(query_ptr + head * D + dims)
    highest = tl.full([], -1.0e30, tl.float32)
    total = tl.full([], 0.0, tl.float32)
    mixed = tl.zeros([D], tl.float32)
    for index in range(0, tl.cdiv(context, BLOCK_SIZE)):
        block = tl.load(block_table_ptr + index)
        written = index * BLOCK_SIZE + offset < context
        place = (block * BLOCK_SIZE + offset)[:, None] * D + dims[None, :]
        key = tl.load(key_ptr + place, mask=written[:, None], other=0.0)
        score = tl.where(written, tl.sum(query[None, :] * key, axis=1) * scale, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(score, axis=0))
        shrink = tl.exp(highest - new_highest)
        weight = tl.exp(score - new_highest)
        total = total * shrink + tl.sum(weight, axis=0)
        mixed = mixed * shrink + tl.sum(weight[:, None] * tl.load(value_ptr + place), axis=0)
        highest = new_highest
    tl.store(out_ptr + head * D + dims, mixed / total)
