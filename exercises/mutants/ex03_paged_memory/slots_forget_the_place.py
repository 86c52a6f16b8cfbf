"""you gave the first slot of the block: a token has a place in it

Fails: test_the_block_table_leads_to_the_block, test_one_token, test_a_chunk_may_begin_and_end_anywhere,
    test_other_block_sizes
"""


def slot_mapping(block_table, start, end, block_size):
    return [block_table[p // block_size] * block_size for p in range(start, end)]
