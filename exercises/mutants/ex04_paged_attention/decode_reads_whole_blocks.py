"""you read what is behind the context, which was never written; a weight of 0 does not help, 0 * NaN is NaN

Fails: test_the_context_ends_inside_a_block, test_every_token_of_the_context_counts, test_scores_are_scaled,
    test_a_table_may_be_longer
"""

solution = paged_decode


def paged_decode(query, key_cache, value_cache, block_table, context, scale):
    block_size = key_cache.shape[1]
    return solution(query, key_cache, value_cache, block_table, -(-context // block_size) * block_size, scale)
