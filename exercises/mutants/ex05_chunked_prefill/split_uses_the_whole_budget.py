"""you gave a request more tokens than it has

Fails: test_nobody_gets_more_than_its_gap, test_any_gaps, test_the_budget_in_the_engine
"""

solution = split_budget


def split_budget(gaps, budget):
    shares = solution(gaps, budget)
    if shares:
        shares[-1] += budget - sum(shares)
    return shares
