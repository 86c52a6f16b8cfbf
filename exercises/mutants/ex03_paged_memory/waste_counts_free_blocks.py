"""free blocks are not inside of what a request has

Fails: test_internal_waste, test_random_layouts
"""

solution = waste


def waste(owners, lengths, block_size, needed):
    return len(owners) * block_size - sum(lengths.values()), solution(owners, lengths, block_size, needed)[1]
