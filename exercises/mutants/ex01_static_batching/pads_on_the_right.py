"""you padded on the right: the next token would follow the padding

Fails: test_rows_end_with_their_prompt
"""

solution = left_pad


def left_pad(prompts, pad):
    longest = max(map(len, prompts))
    return [prompt + [pad] * (longest - len(prompt)) for prompt in prompts], *solution(prompts, pad)[1:]
