"""you handed the key/value heads out in turn: neighbouring query heads share one

Fails: test_query_heads_in_groups
"""


def paged_decode(query, key_cache, value_cache, block_table, context, scale):
    block_size = key_cache.shape[1]
    token = torch.arange(context)
    block, group = torch.tensor(block_table)[token // block_size], query.shape[0] // key_cache.shape[2]
    keys, values = (cache[block, token % block_size].repeat(1, group, 1) for cache in (key_cache, value_cache))
    return torch.einsum("hc,chd->hd", (torch.einsum("hd,chd->hc", query, keys) * scale).softmax(-1), values)
