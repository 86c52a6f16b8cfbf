"""you counted what the last block of each holds beyond the length: it may have whole blocks too many

Fails: test_internal_waste, test_random_layouts
"""

solution = waste


def waste(owners, lengths, block_size, needed):
    return sum(-length % block_size for length in lengths.values()), solution(owners, lengths, block_size, needed)[1]
