"""you padded the caller's own lists

Fails: test_the_prompts_stay_as_they_were
"""

solution = left_pad


def left_pad(prompts, pad):
    result = solution(prompts, pad)
    for prompt in prompts:
        while len(prompt) < len(result[0][0]):
            prompt.insert(0, pad)
    return result
