"""you appended the new tokens to the caller's own list

Fails: test_the_prompt_stays_as_it_was
"""

solution = generate


def generate(model, prompt, max_tokens):
    new_tokens, read = solution(model, prompt, max_tokens)
    prompt += new_tokens
    return new_tokens, read
