"""you scaled after the softmax: scores are scaled before it

Fails: test_blocks_in_the_tables_order, test_the_context_ends_inside_a_block, test_every_token_of_the_context_counts,
    test_scores_are_scaled, test_query_heads_in_groups, test_a_table_may_be_longer
"""

solution = paged_decode


def paged_decode(query, key_cache, value_cache, block_table, context, scale):
    return solution(query, key_cache, value_cache, block_table, context, 1.0) * scale
