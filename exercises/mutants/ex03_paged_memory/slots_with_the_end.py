"""`end` is the position behind the last one wanted

Fails: test_one_token, test_a_chunk_may_begin_and_end_anywhere, test_other_block_sizes
"""


def slot_mapping(block_table, start, end, block_size):
    last = min(end + 1, len(block_table) * block_size)
    return [block_table[p // block_size] * block_size + p % block_size for p in range(start, last)]
