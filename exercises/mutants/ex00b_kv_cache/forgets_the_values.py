"""you counted the keys and not the values

Fails: test_bytes_of_one_token
"""


def kv_bytes_per_token(num_layers, num_heads, num_kv_heads, head_dim, bytes_per_number):
    return num_layers * num_kv_heads * head_dim * bytes_per_number
