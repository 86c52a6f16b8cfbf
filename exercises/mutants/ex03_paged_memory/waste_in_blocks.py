"""you counted blocks: the answer is in tokens

Fails: test_scattered_room_is_lost, test_random_layouts
"""

solution = waste


def waste(owners, lengths, block_size, needed):
    internal, external = solution(owners, lengths, block_size, needed)
    return internal, external // block_size
