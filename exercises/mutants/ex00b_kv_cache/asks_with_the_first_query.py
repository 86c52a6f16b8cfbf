"""you ask with the query of the prompt's first token

Fails: test_one_new_token_follows_from_the_prompt, test_tokens_are_those_of_the_whole_text,
    test_a_second_text_starts_with_an_empty_cache
"""


def generate(model, prompt, max_tokens):
    new_tokens, to_read, all_keys, all_values = [], prompt, [], []
    for _ in range(max_tokens):
        queries, keys, values = model.read(to_read, range(len(all_keys), len(all_keys) + len(to_read)))
        all_keys, all_values = all_keys + keys, all_values + values
        to_read = [model.next_token(attend(queries[0], all_keys, all_values))]
        new_tokens += to_read
    return new_tokens, len(all_keys)
