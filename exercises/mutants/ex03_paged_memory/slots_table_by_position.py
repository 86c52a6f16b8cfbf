"""you looked the position up in the block table: it has an entry for each block

Fails: test_the_block_table_leads_to_the_block, test_one_token, test_a_chunk_may_begin_and_end_anywhere,
    test_other_block_sizes
"""


def slot_mapping(block_table, start, end, block_size):
    return [block_table[min(p, len(block_table) - 1)] * block_size + p % block_size for p in range(start, end)]
