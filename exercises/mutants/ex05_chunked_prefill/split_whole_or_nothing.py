"""you gave a prompt that does not fit nothing: it may be cut

Fails: test_decodes_come_first, test_prompts_are_served_in_order, test_a_prompt_may_be_cut, test_any_gaps,
    test_the_budget_in_the_engine
"""


def split_budget(gaps, budget):
    shares = [0] * len(gaps)
    for i in sorted(range(len(gaps)), key=lambda i: gaps[i] > 1):
        if gaps[i] <= budget:
            shares[i] = gaps[i]
            budget -= gaps[i]
    return shares
