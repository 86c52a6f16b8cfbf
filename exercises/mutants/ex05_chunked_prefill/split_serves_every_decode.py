"""you let the decodes break the budget

Fails: test_a_budget_for_some_of_the_decodes, test_any_gaps
"""


def split_budget(gaps, budget):
    left = max(0, budget - gaps.count(1))
    shares = []
    for gap in gaps:
        shares.append(1 if gap == 1 else min(gap, left))
        left -= 0 if gap == 1 else shares[-1]
    return shares
