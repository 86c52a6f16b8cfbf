"""if one hole is long enough, the short ones are not lost yet

Fails: test_one_hole_is_enough, test_a_hole_at_the_end_counts, test_random_layouts
"""

from itertools import groupby

solution = waste


def waste(owners, lengths, block_size, needed):
    holes = [len(list(run)) for owner, run in groupby(owners) if owner is None]
    lost = sum(hole for hole in holes if hole < needed) if sum(holes) >= needed else 0
    return solution(owners, lengths, block_size, needed)[0], lost * block_size
