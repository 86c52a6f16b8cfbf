"""you counted the padding

Fails: test_positions_start_after_padding, test_a_prompt_may_contain_the_pad_token
"""

solution = left_pad


def left_pad(prompts, pad):
    input_ids, attention_mask, _ = solution(prompts, pad)
    return input_ids, attention_mask, [list(range(len(row))) for row in input_ids]
