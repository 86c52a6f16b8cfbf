"""you shared the rest among the prompts: the first one gets all it can use

Fails: test_decodes_come_first, test_prompts_are_served_in_order, test_a_prompt_may_be_cut
"""


def split_budget(gaps, budget):
    shares = [0] * len(gaps)
    for i in [i for i, gap in enumerate(gaps) if gap == 1]:
        shares[i] = min(1, budget)
        budget -= shares[i]
    while budget and any(gap > share for gap, share in zip(gaps, shares, strict=True)):
        for i, gap in enumerate(gaps):
            if (budget and gap > max(1, shares[i])) or (gap > 1 and shares[i] == 0 and budget):
                shares[i] += 1
                budget -= 1
    return shares
