"""you took the mean of the tiles' own answers: they do not weigh the same

Fails: test_tiles_give_what_the_whole_gives, test_the_highest_score_may_come_late,
    test_the_highest_score_may_come_early, test_large_scores_do_not_overflow, test_a_tile_may_be_hidden,
    test_a_tile_is_not_kept
"""


def online_softmax(tiles, head_dim):
    answers = [scores.softmax(0).nan_to_num(0) @ values for scores, values in tiles]
    return torch.stack(answers).mean(0) if answers else torch.zeros(head_dim)
