"""you kept the higher lse: the lower part's weights count too

Fails: test_the_sum_goes_on, test_large_sums_do_not_overflow
"""

solution = merge


def merge(out_a, lse_a, out_b, lse_b):
    return solution(out_a, lse_a, out_b, lse_b)[0], torch.maximum(lse_a, lse_b)
