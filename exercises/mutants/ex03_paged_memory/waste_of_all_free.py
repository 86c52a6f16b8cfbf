"""free is not lost: only what the waiting request cannot use although it would be enough

Fails: test_one_hole_is_enough, test_too_little_is_not_scattered, test_a_hole_at_the_end_counts, test_random_layouts
"""

solution = waste


def waste(owners, lengths, block_size, needed):
    return solution(owners, lengths, block_size, needed)[0], owners.count(None) * block_size
