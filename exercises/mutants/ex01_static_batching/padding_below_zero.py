"""padding has position 0: a model that learned its positions has none at -1

Fails: test_positions_start_after_padding, test_a_prompt_may_contain_the_pad_token
"""

solution = left_pad


def left_pad(prompts, pad):
    input_ids, attention_mask, _ = solution(prompts, pad)
    positions = [[sum(row[: column + 1]) - 1 for column in range(len(row))] for row in attention_mask]
    return input_ids, attention_mask, positions
