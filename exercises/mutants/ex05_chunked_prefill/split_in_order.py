"""you went through them in order: decodes come first

Fails: test_decodes_come_first, test_a_budget_for_some_of_the_decodes
"""


def split_budget(gaps, budget):
    shares = []
    for gap in gaps:
        shares.append(min(gap, budget))
        budget -= shares[-1]
    return shares
