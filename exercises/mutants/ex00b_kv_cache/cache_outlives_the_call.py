"""your cache outlives the call: the next text sees the keys of this one

Fails: test_one_new_token_follows_from_the_prompt, test_the_count_is_what_the_model_read,
    test_a_second_text_starts_with_an_empty_cache
"""


def generate(model, prompt, max_tokens, all_keys=[], all_values=[]):  # noqa: B006
    new_tokens, to_read, position = [], prompt, 0
    while len(new_tokens) < max_tokens:
        queries, keys, values = model.read(to_read, range(position, position + len(to_read)))
        position += len(to_read)
        all_keys += keys
        all_values += values
        to_read = [model.next_token(attend(queries[-1], all_keys, all_values))]
        new_tokens += to_read
    return new_tokens, len(all_keys)
