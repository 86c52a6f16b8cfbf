"""you kept the highest score of this tile: keep the highest of all

Fails: test_tiles_give_what_the_whole_gives, test_the_highest_score_may_come_early, test_a_tile_is_not_kept
"""


def online_softmax(tiles, head_dim):
    highest, total, mixed = torch.tensor(-1e30), torch.zeros(()), torch.zeros(head_dim)
    for scores, values in tiles:
        new_highest = scores.max().clamp(min=-1e30)
        shrink, weights = torch.exp(highest - new_highest).clamp(max=1), torch.exp(scores - new_highest)
        total, mixed = total * shrink + weights.sum(), mixed * shrink + weights @ values
        highest = new_highest
    return mixed / total if total > 0 else mixed
