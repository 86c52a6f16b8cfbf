"""you measured a hole when the next block was taken: the last one ends with the pool

Fails: test_a_hole_at_the_end_counts, test_random_layouts
"""

solution = waste


def waste(owners, lengths, block_size, needed):
    longest = hole = 0
    for owner in owners:
        if owner is None:
            hole += 1
        else:
            longest, hole = max(longest, hole), 0
    free = owners.count(None)
    lost = free * block_size if longest < needed <= free else 0
    return solution(owners, lengths, block_size, needed)[0], lost
