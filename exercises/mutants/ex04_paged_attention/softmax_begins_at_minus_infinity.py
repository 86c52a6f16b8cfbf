"""-inf minus -inf is NaN: begin with a low finite number

Fails: test_a_tile_may_be_hidden, test_who_sees_nothing_gets_zeros
"""


def online_softmax(tiles, head_dim):
    highest, total, mixed = torch.tensor(-torch.inf), torch.zeros(()), torch.zeros(head_dim)
    for scores, values in tiles:
        new_highest = torch.maximum(highest, scores.max())
        shrink, weights = torch.exp(highest - new_highest), torch.exp(scores - new_highest)
        total, mixed = total * shrink + weights.sum(), mixed * shrink + weights @ values
        highest = new_highest
    return mixed / total if total != 0 else mixed
