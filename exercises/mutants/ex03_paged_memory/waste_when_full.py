"""all free blocks together are too few: the pool is full, and nothing is lost by scattering

Fails: test_too_little_is_not_scattered, test_random_layouts
"""

solution = waste


def waste(owners, lengths, block_size, needed):
    internal, external = solution(owners, lengths, block_size, needed)
    free = owners.count(None)
    return internal, free * block_size if free < needed else external
