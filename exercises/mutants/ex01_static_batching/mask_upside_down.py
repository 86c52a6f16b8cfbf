"""your mask is upside down: 1 is what may be seen

Fails: test_mask_hides_the_padding, test_a_prompt_may_contain_the_pad_token
"""

solution = left_pad


def left_pad(prompts, pad):
    input_ids, attention_mask, position_ids = solution(prompts, pad)
    return input_ids, [[1 - keep for keep in row] for row in attention_mask], position_ids
