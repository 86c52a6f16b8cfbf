"""you began at the beginning of the block: begin at `start`

Fails: test_one_token, test_a_chunk_may_begin_and_end_anywhere, test_other_block_sizes
"""


def slot_mapping(block_table, start, end, block_size):
    return [
        block_table[p // block_size] * block_size + p % block_size for p in range(start // block_size * block_size, end)
    ]
