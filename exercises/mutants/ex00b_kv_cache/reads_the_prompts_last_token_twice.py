"""you read the last token of the prompt a second time

Fails: test_tokens_are_those_of_the_whole_text, test_each_token_is_read_once,
    test_a_second_text_starts_with_an_empty_cache
"""


def generate(model, prompt, max_tokens):
    to_read, all_keys, all_values, text = prompt, [], [], list(prompt)
    for _ in range(max_tokens):
        queries, keys, values = model.read(to_read, range(len(text) - len(to_read), len(text)))
        all_keys, all_values = all_keys + keys, all_values + values
        text.append(model.next_token(attend(queries[-1], all_keys, all_values)))
        to_read = text[-2:]
    return text[len(prompt) :], len(all_keys)
