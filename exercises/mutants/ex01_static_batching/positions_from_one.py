"""your positions begin at 1

Fails: test_positions_start_after_padding, test_a_prompt_may_contain_the_pad_token
"""

solution = left_pad


def left_pad(prompts, pad):
    input_ids, attention_mask, _ = solution(prompts, pad)
    return input_ids, attention_mask, [[sum(row[: i + 1]) for i in range(len(row))] for row in attention_mask]
