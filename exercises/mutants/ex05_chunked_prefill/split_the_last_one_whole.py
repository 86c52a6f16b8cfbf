"""you gave the last prompt more than was left of the budget

Fails: test_decodes_come_first, test_prompts_are_served_in_order, test_a_prompt_may_be_cut, test_any_gaps,
    test_the_budget_in_the_engine
"""


def split_budget(gaps, budget):
    shares = [0] * len(gaps)
    for i in sorted(range(len(gaps)), key=lambda i: gaps[i] > 1):
        if budget > 0:
            shares[i] = gaps[i]
            budget -= gaps[i]
    return shares
