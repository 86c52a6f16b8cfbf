"""your positions begin again at 0 with the new tokens

Fails: test_tokens_are_those_of_the_whole_text, test_a_new_token_stands_behind_the_text,
    test_a_second_text_starts_with_an_empty_cache
"""


def generate(model, prompt, max_tokens):
    new_tokens, to_read, all_keys, all_values = [], prompt, [], []
    for step in range(max_tokens):
        queries, keys, values = model.read(to_read, range(len(to_read)) if step == 0 else [step - 1])
        all_keys, all_values = all_keys + keys, all_values + values
        to_read = [model.next_token(attend(queries[-1], all_keys, all_values))]
        new_tokens += to_read
    return new_tokens, len(all_keys)
