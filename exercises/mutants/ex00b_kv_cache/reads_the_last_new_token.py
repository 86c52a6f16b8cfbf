"""you read the last new token too: nobody asks what comes after it

Fails: test_a_new_token_stands_behind_the_text, test_each_token_is_read_once
"""


def generate(model, prompt, max_tokens):
    new_tokens, to_read, all_keys, all_values = [], prompt, [], []
    for _ in range(max_tokens + 1):
        queries, keys, values = model.read(to_read, range(len(all_keys), len(all_keys) + len(to_read)))
        all_keys, all_values = all_keys + keys, all_values + values
        to_read = [model.next_token(attend(queries[-1], all_keys, all_values))]
        new_tokens += to_read
    return new_tokens[:max_tokens], len(all_keys)
