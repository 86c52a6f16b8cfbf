"""you took the position for the place in the pool: the block table says where the block is

Fails: test_the_block_table_leads_to_the_block, test_one_token, test_a_chunk_may_begin_and_end_anywhere,
    test_other_block_sizes
"""


def slot_mapping(block_table, start, end, block_size):
    return list(range(start, end))
