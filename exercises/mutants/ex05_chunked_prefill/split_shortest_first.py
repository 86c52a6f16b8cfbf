"""you served the shortest prompt first: they are served in order

Fails: test_prompts_are_served_in_order, test_a_prompt_may_be_cut
"""


def split_budget(gaps, budget):
    shares = [0] * len(gaps)
    for i in sorted(range(len(gaps)), key=lambda i: gaps[i]):
        shares[i] = min(gaps[i], budget)
        budget -= shares[i]
    return shares
