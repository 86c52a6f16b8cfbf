"""you counted the new tokens; the prompt is read too

Fails: test_the_count_is_what_the_model_read
"""

solution = generate


def generate(model, prompt, max_tokens):
    return solution(model, prompt, max_tokens)[0], max_tokens
