"""you took every pad token for padding, even those of a prompt

Fails: test_a_prompt_may_contain_the_pad_token
"""

solution = left_pad


def left_pad(prompts, pad):
    input_ids, _, position_ids = solution(prompts, pad)
    return input_ids, [[int(token != pad) for token in row] for row in input_ids], position_ids
