"""both parts may be empty: -inf minus -inf is NaN

Fails: test_two_empty_parts_are_empty
"""


def merge(out_a, lse_a, out_b, lse_b):
    highest = torch.maximum(lse_a, lse_b)
    a, b = torch.exp(lse_a - highest), torch.exp(lse_b - highest)
    return (a[:, None] * out_a + b[:, None] * out_b) / (a + b)[:, None], highest + torch.log(a + b)
