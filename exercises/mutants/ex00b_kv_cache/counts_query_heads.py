"""you counted the query heads: they keep nothing

Fails: test_bytes_of_one_token
"""


def kv_bytes_per_token(num_layers, num_heads, num_kv_heads, head_dim, bytes_per_number):
    return 2 * num_layers * num_heads * head_dim * bytes_per_number
