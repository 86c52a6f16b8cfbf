"""Checks of exercise 0b."""

from minibatcher.grading import exercise, expect, part
from minibatcher.grading.toys import ToyModel, attend


def text():
    return [5, 7, 9, 11, 5]


def without_cache(prompt, max_tokens):
    model, token_ids = ToyModel(), list(prompt)
    for _ in range(max_tokens):
        queries, keys, values = model.read(token_ids, range(len(token_ids)))
        token_ids.append(model.next_token(attend(queries[-1], keys, values)))
    return token_ids[len(prompt) :]


@exercise("0b.1", points=4, minutes=25)
class TestGenerate:
    """Generate with a KV cache"""

    def test_one_new_token_follows_from_the_prompt(self, ex):
        """the first new token follows from the whole prompt"""
        for prompt in ([5], [7, 9], text()):
            expect(part(ex.generate(ToyModel(), list(prompt), 1), 0, of=2), without_cache(prompt, 1))

    def test_tokens_are_those_of_the_whole_text(self, ex):
        """with the cache the tokens are the same as when the whole text is read again for each"""
        expect(part(ex.generate(ToyModel(), text(), 8), 0, of=2), without_cache(text(), 8))

    def test_a_new_token_stands_behind_the_text(self, ex):
        """positions count on through the whole text: here are those that the model was given"""
        model = ToyModel()
        ex.generate(model, text(), 4)
        expect(sorted(set(model.seen)), range(8))

    def test_each_token_is_read_once(self, ex):
        """the model reads each token once, and the last new one not at all"""
        for n, tokens in {1: 5, 2: 6, 6: 10}.items():
            model = ToyModel()
            ex.generate(model, text(), n)
            expect(len(model.seen), tokens, "how many tokens the model was given")

    def test_the_count_is_what_the_model_read(self, ex):
        """the number returned is the number of tokens that the model read"""
        for n in (1, 2, 3):
            model = ToyModel()
            count = part(ex.generate(model, text()[:n], n), 1, of=2)
            expect(count, len(model.seen), "the number returned")

    def test_a_second_text_starts_with_an_empty_cache(self, ex):
        """a second call knows nothing of the first"""
        ex.generate(ToyModel(), [1, 2, 3], 3)
        expect(part(ex.generate(ToyModel(), text(), 3), 0, of=2), without_cache(text(), 3))

    def test_the_prompt_stays_as_it_was(self, ex):
        """the caller's prompt is not changed"""
        prompt = [1, 2, 3]
        ex.generate(ToyModel(), prompt, 3)
        expect(prompt, [1, 2, 3])


@exercise("0b.2", points=2, minutes=15)
class TestMemory:
    """KV bytes per token, and the largest batch"""

    def test_bytes_of_one_token(self, ex):
        """a key and a value, in every layer, for every key/value head"""
        smollm2 = ex.kv_bytes_per_token(num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64, bytes_per_number=4)
        expect(smollm2, 46080)
        other = ex.kv_bytes_per_token(num_layers=2, num_heads=4, num_kv_heads=4, head_dim=10, bytes_per_number=2)
        expect(other, 320)

    def test_the_weights_stay_on_the_gpu(self, ex):
        """what the weights take is not there for the cache"""
        expect(ex.largest_batch(memory=1000, weights=400, bytes_per_token=2, context=50), 6)

    def test_half_a_request_does_not_fit(self, ex):
        """a request fits as a whole or not at all"""
        for memory, batch in {399: 2, 400: 3, 401: 3}.items():
            got = ex.largest_batch(memory, weights=100, bytes_per_token=10, context=10)
            expect([got, type(got).__name__], [batch, "int"], "the number, and what kind of number it is")

    def test_weights_that_do_not_fit(self, ex):
        """if the weights do not even fit, the batch is 0"""
        expect(ex.largest_batch(memory=100, weights=400, bytes_per_token=1, context=10), 0)


def picture(ex):
    """What the cache saves."""
    rows = ["what your cache saves: tokens read for 16 new ones", "", "prompt   with the cache   without"]
    for n in (1, 16, 64):
        model = ToyModel()
        ex.generate(model, [1] * n, 16)
        rows.append(f"{n:>6}   {len(model.seen):>14}   {sum(range(n, n + 16)):>7}")
    return "\n".join(rows)
