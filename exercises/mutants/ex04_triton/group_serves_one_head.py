"""you served the first head alone: the tile has a row for each

Fails: test_attention_of_a_group, test_great_scores_of_a_group
"""

solution = grouped


def grouped(query, keys, values, block_table, context, scale):
    return solution(query[:1], keys, values, block_table, context, scale).expand(query.shape).contiguous()
