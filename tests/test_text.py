"""Text while the tokens come one by one: the pieces of a stream joined are what the tokenizer makes of all tokens."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from minibatcher import Request, SamplingParams
from minibatcher.model import tiny as tiny_model
from minibatcher.text import HALF, TextStream

PIECES = ["▁", "▁▁", "▁Hello", "▁world", "Hello", "a", "b", "é", "e", "\u0301", "你", "好", "👩", "!", "▁.", "ing"]


def sentencepiece() -> PreTrainedTokenizerFast:
    """As Llama 2's: `▁` is a space, the first of which is dropped, and what has no token falls back to bytes."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    vocab = {word: number for number, word in enumerate(words)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    backend.add_special_tokens(["<unk>", "<s>", "</s>", "<|tool|>"])  # the last one is no bos, eos or the like
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


BYTES, METASPACE = tiny_model.tokenizer(), sentencepiece()
FIRST_BYTE, FIRST_PIECE = 3, 259  # of METASPACE


KINDS = ["bytes", "metaspace", pytest.param("smollm2", marks=pytest.mark.smollm2)]


def tokenizer_of(kind: str, request: pytest.FixtureRequest):
    if kind == "smollm2":
        return request.getfixturevalue("smollm2").tokenizer
    return {"bytes": BYTES, "metaspace": METASPACE}[kind]


def decode(tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def stream(tokenizer, ids, stop_ids=(), **params) -> tuple[list[str], str, int]:
    """Push ids until one ends the request, as the engine does. Returns the pieces, the text, and how many were pushed.

    A piece is sent as soon as it is safe: what was sent once cannot be taken back.
    """
    request = Request([0], SamplingParams(max_tokens=max(1, len(ids)), **params))
    request.stop_ids = frozenset(stop_ids) | frozenset(request.params.stop_token_ids)
    text = TextStream(tokenizer, request)
    pieces, sent = [], 0
    for token in ids:
        request.token_ids.append(token)
        stopped = text.push(token)
        pieces.append(text.text[sent : text.safe])
        sent = max(sent, text.safe)
        if stopped:
            break
    text.close()
    return [*pieces, text.text[sent:]], text.text, len(pieces)


def spell(tokenizer, text: str) -> list[int]:
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert decode(tokenizer, ids) == text
    return ids


# -- any tokens at all ------------------------------------------------------------------------------------------------


def check_whole(tokenizer, ids: list[int]) -> None:
    pieces, text, _ = stream(tokenizer, ids)
    assert "".join(pieces) == text == decode(tokenizer, ids)


@given(st.lists(st.integers(0, 258), max_size=40))
def test_any_bytes_and_special_tokens(ids):
    """Broken UTF-8 of every kind: the pieces joined equal the whole (sgl-project/sglang#31598: text was duplicated)."""
    check_whole(BYTES, ids)


@given(st.text(max_size=12), st.lists(st.integers(0, 2), max_size=3))
def test_any_text_in_bytes_with_special_tokens_between(text, specials):
    ids = spell(BYTES, text)
    for number, special in enumerate(specials):
        ids.insert(len(ids) * number // 3, 256 + special)
    check_whole(BYTES, ids)


@pytest.mark.smollm2
@given(data=st.data())
def test_any_tokens_of_smollm2(smollm2, data):
    """Its 17 special tokens are no text; only three of them are its bos, eos, pad or unk."""
    vocab = len(smollm2.tokenizer)
    check_whole(smollm2.tokenizer, data.draw(st.lists(st.integers(0, 300) | st.integers(0, vocab - 1), max_size=30)))


@pytest.mark.smollm2
def test_long_random_token_lists_of_smollm2(smollm2):
    for length in (1, 2, 50, 400, 401):
        check_whole(smollm2.tokenizer, torch.randint(len(smollm2.tokenizer), (length,)).tolist())


def metaspace_ids():
    """Tokens of METASPACE in which bytes come as whole characters.

    ByteFallback judges a run of bytes as a whole: a byte that is no character turns the good ones before it into
    U+FFFD as well, which had been sent long ago. No stream can follow that.
    """
    specials = st.sampled_from([[0], [1], [2], [len(METASPACE) - 1]])
    character = st.characters(exclude_categories=["Cs"]).map(lambda c: [FIRST_BYTE + byte for byte in c.encode()])
    piece = st.integers(FIRST_PIECE, FIRST_PIECE + len(PIECES) - 1).map(lambda token: [token])
    return st.lists(st.one_of(piece, specials, character), max_size=25).map(lambda parts: [*chain(*parts)])


@given(metaspace_ids())
def test_any_pieces_bytes_and_special_tokens_of_a_sentencepiece_tokenizer(ids):
    """A decoder that drops the first space must not drop one in the middle, whatever stands before it."""
    check_whole(METASPACE, ids)


@given(st.lists(st.integers(0, len(METASPACE) - 1), max_size=25))
def test_broken_bytes_of_a_sentencepiece_tokenizer(ids):
    """Joined, the pieces are the text. It is the whole but for the characters that ByteFallback takes back."""
    pieces, text, _ = stream(METASPACE, ids)
    whole = decode(METASPACE, ids)
    assert "".join(pieces) == text
    assert text == whole or HALF in whole


def test_a_space_after_a_token_without_text_stays():
    """Special tokens, ids that the tokenizer does not know (padding of the embedding), and the lone first space."""
    hello, world, space = (FIRST_PIECE + PIECES.index(piece) for piece in ("▁Hello", "▁world", "▁"))
    for nothing in (2, len(METASPACE) - 1, 5000):
        for ids in ([hello, nothing, world], [nothing, hello, nothing, nothing, world], [nothing, space, world, world]):
            check_whole(METASPACE, ids)
    check_whole(METASPACE, [space, world])


def test_random_tokens_from_torch():
    for tokenizer, limit in ((BYTES, 259), (METASPACE, FIRST_PIECE)):
        for length in (1, 2, 3, 7, 100, 1000):
            ids = torch.randint(limit, (length,)).tolist()
            if tokenizer is METASPACE:
                ids = [FIRST_PIECE + token % len(PIECES) for token in ids]
            check_whole(tokenizer, ids)


# -- whole characters -------------------------------------------------------------------------------------------------

TEXTS = ["你好，世界", "👩‍👩‍👧 🇫🇷 🏳️‍🌈", "e\u0301 a\u0308\u0304", "naïve façade — ≤ 3 €", "한국어 ไทย हिन्दी", "a你b👍c"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", KINDS)
def test_characters_of_several_tokens_arrive_whole(text, kind, request):
    """Each with its last byte, and never U+FFFD for half of one, as in sgl-project/sglang#31598 and others."""
    tokenizer = tokenizer_of(kind, request)
    ids = spell(tokenizer, text)
    pieces, whole, _ = stream(tokenizer, ids)
    assert "".join(pieces) == whole == text and pieces[-1] == ""
    assert HALF not in "".join(pieces)
    complete = ""  # what is whole after each token
    for count in range(len(ids) + 1):
        complete = max(complete, decode(tokenizer, ids[:count]).rstrip(HALF), key=len)
        assert "".join(pieces[:count]) == complete


def test_half_a_character_at_the_very_end_is_shown_when_no_more_can_come():
    ids = spell(BYTES, "a你")[:-1]
    assert stream(BYTES, ids) == (["a", "", "", HALF], "a" + HALF, 3)


def test_a_replacement_character_that_the_model_writes_is_kept():
    for text in (HALF, f"a{HALF}b", f"{HALF}{HALF}你"):
        pieces, whole, _ = stream(BYTES, spell(BYTES, text))
        assert "".join(pieces) == whole == text


# -- stop strings -----------------------------------------------------------------------------------------------------


def cut(text: str, stops: tuple[str, ...]) -> str:
    """Up to the stop string that is complete first; of several at once, the one that began first.

    A token of BYTES is at most a character, so `first` leaves no doubt.
    """
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return text[: min(ends)[1]] if ends else text


@given(st.text("ab你", max_size=14), st.lists(st.text("ab你", min_size=1, max_size=4), min_size=1, max_size=3))
def test_the_text_ends_before_the_first_stop_string(text, stops):
    """Across tokens, inside characters of several tokens, one or several; and no part of it is ever sent."""
    pieces, whole, count = stream(BYTES, spell(BYTES, text), stop=stops)
    assert "".join(pieces) == whole == cut(text, tuple(stops))
    end = min((text.find(stop) + len(stop) for stop in stops if stop in text), default=len(text))
    assert count == len(text[:end].encode()), "it ends with the token that completes the stop string"


STOPPED = [
    ("Hello world! More", ["!"], "Hello world"),
    ("Hello world! More", ["world", "Hello w"], ""),  # the earlier one, though it is the second in the list
    ("Hello world! More", ["More", "lo wor"], "Hel"),
    ("Hello world!", ["Hello world!"], ""),  # the whole text
    ("Hello world!", ["Hello world!!"], "Hello world!"),  # all but its last character came
    ("1\n2\n\n3", ["\n\n"], "1\n2"),
    ("aaab", ["aab"], "a"),  # a false start
    ("你好，世界", ["，世"], "你好"),
    ("go 👩‍👩‍👧!", ["👧"], "go 👩‍👩\u200d"),
]


@pytest.mark.parametrize(("text", "stop", "kept"), STOPPED)
@pytest.mark.parametrize("kind", KINDS)
def test_stop_strings_do_not_respect_token_borders(text, stop, kept, kind, request):
    tokenizer = tokenizer_of(kind, request)
    pieces, whole, _ = stream(tokenizer, spell(tokenizer, text), stop=stop)
    assert "".join(pieces) == whole == kept


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_streamed_never_holds_the_beginning_of_a_stop_string(kind, request):
    """A part went out before the whole was recognised in vllm-project/vllm#3574. No more is held back than that takes:
    all but the last characters, one fewer than the stop string has.
    """
    tokenizer, stop = tokenizer_of(kind, request), "\n### END"
    ids = spell(tokenizer, "Some words" + stop + " and more")
    pieces, text, count = stream(tokenizer, ids, stop=[stop])
    assert text == "Some words"
    for number in range(count):
        sent, there = "".join(pieces[:number]), decode(tokenizer, ids[:number])
        assert sent == there[: max(0, len(there) - len(stop) + 1)]
    assert "Some words".startswith("".join(pieces[:count]))


@given(st.text("ab", min_size=1, max_size=12), st.text("ab", min_size=1, max_size=3), st.integers(0, 12))
def test_a_stop_string_counts_when_it_ends_after_min_tokens(text, stop, min_tokens):
    """vLLM's rule: a match must end in a token after the first `min_tokens`; it may begin before. (They were ignored
    altogether in vllm-project/vllm#15967.)
    """
    min_tokens = min(min_tokens, len(text))
    pieces, whole, count = stream(BYTES, spell(BYTES, text), stop=[stop], min_tokens=min_tokens)
    ends = [end for end in range(min_tokens + 1, len(text) + 1) if text[:end].endswith(stop)]
    expected = text[: ends[0] - len(stop)] if ends else text
    assert "".join(pieces) == whole == expected
    assert count == (ends[0] if ends else len(text))


# -- end tokens and stop ids ------------------------------------------------------------------------------------------


def test_the_text_of_the_token_that_ends_a_request_is_not_in_the_text():
    """Neither an end token nor an ordinary token that was named in stop_token_ids."""
    ids = spell(BYTES, "abcd")
    assert stream(BYTES, ids, stop_token_ids=[ids[2]]) == (["a", "b", "", ""], "ab", 3)
    assert stream(BYTES, [*ids, 257, *ids], stop_ids=[257])[1:] == ("abcd", 5)
    assert stream(BYTES, [*ids, 257, *ids])[1:] == ("abcdabcd", 9)  # ignore_eos: no end, and no text either


def test_half_a_character_before_the_end_token_is_shown():
    ids = spell(BYTES, "a你")[:-1]
    assert stream(BYTES, [*ids, 257], stop_ids=[257])[1:] == ("a" + HALF, 4)


def test_a_stop_id_within_min_tokens_does_not_end_the_request():
    ids = spell(BYTES, "xbxbxb")
    assert [stream(BYTES, ids, stop_token_ids=[ids[1]], min_tokens=n)[1:] for n in (0, 1, 2, 3, 4, 6)] == [
        ("x", 2), ("x", 2), ("xbx", 4), ("xbx", 4), ("xbxbx", 6), ("xbxbxb", 6),
    ]  # fmt: skip
