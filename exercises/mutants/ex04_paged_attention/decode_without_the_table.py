"""you read the first blocks of the pool: the block table says which are the request's

Fails: test_blocks_in_the_tables_order, test_the_context_ends_inside_a_block, test_every_token_of_the_context_counts,
    test_a_table_may_be_longer
"""

solution = paged_decode


def paged_decode(query, key_cache, value_cache, block_table, context, scale):
    return solution(query, key_cache, value_cache, list(range(len(block_table))), context, scale)
