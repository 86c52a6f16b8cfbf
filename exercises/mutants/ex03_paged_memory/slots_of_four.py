"""you wrote 4 where block_size belongs

Fails: test_a_chunk_may_begin_and_end_anywhere, test_other_block_sizes
"""


def slot_mapping(block_table, start, end, block_size):
    return [block_table[min(p // 4, len(block_table) - 1)] * 4 + p % 4 for p in range(start, end)]
