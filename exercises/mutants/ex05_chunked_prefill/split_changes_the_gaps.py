"""you counted the caller's own list down

Fails: test_any_gaps
"""

solution = split_budget


def split_budget(gaps, budget):
    shares = solution(gaps, budget)
    for i, share in enumerate(shares):
        gaps[i] -= share
    return shares
