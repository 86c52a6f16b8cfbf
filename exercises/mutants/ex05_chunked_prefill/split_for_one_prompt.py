"""you served one prompt a step: what it leaves goes to the next one

Fails: test_prompts_are_served_in_order, test_any_gaps
"""

solution = split_budget


def split_budget(gaps, budget):
    shares = solution(gaps, budget)
    prompts = [i for i, gap in enumerate(gaps) if gap > 1]
    for i in prompts[1:]:
        shares[i] = 0
    return shares
