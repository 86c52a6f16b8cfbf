"""What a model costs to run, read from its config.json: how many weights, how large a cache. No weights are needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

Config = Mapping[str, Any]

# The same thing has several names on the Hugging Face hub.
HIDDEN = ("hidden_size", "n_embd", "d_model")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads")
INTERMEDIATE = ("intermediate_size", "n_inner", "ffn_dim")
LENGTH = ("max_position_embeddings", "n_positions", "max_seq_len")

# Model types whose MLP has two matrices; all others have three (the gated MLP of Llama).
TWO_MATRICES = frozenset(
    {"gpt2", "gpt_neo", "gpt_neox", "gptj", "gpt_bigcode", "opt", "phi", "bloom", "falcon", "mpt", "starcoder2"}
)
# Model types that reuse the embedding as output layer unless their config says otherwise.
TIED = frozenset({"gpt2", "gpt_neo", "gpt_bigcode", "opt", "bloom", "falcon", "mpt", "gemma", "gemma2", "gemma3_text"})
# What this form does not describe, and why.
REFUSED = {
    "num_local_experts": "a mixture of experts reads other weights at every step",
    "num_experts": "a mixture of experts reads other weights at every step",
    "n_routed_experts": "a mixture of experts reads other weights at every step",
    "kv_lora_rank": "its cache is compressed (multi-head latent attention)",
    "ssm_state_size": "it has recurrent layers, which keep a state instead of keys and values",
    "state_size": "it has recurrent layers, which keep a state instead of keys and values",
}


@dataclass(frozen=True)
class Architecture:
    """A decoder with full attention; a sliding window is counted as if it saw everything.

    layer_weights: numbers in all layers, which every token is multiplied with. output_weights: in the output layer,
    which only sampled rows are. weights: all that must be in memory.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    layer_weights: int
    output_weights: int
    weights: int
    max_model_len: int

    @property
    def kv_values(self) -> int:
        """Numbers that a token's keys and values are: 2 x layers x kv heads x head size."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def pair_flops(self) -> int:
        """FLOPs for one (query, key) pair: a dot product and a weighted sum, in every head of every layer."""
        return 4 * self.layers * self.heads * self.head_dim


def architecture(model: str | PathLike[str]) -> Architecture:
    """A name of the table in models.json, a config.json, or a folder that has one.

    Raises ValueError with the names, or with what is missing in the file.
    """
    table = json.loads((files("minibatcher") / "measure" / "models.json").read_text(encoding="utf-8"))
    path = Path(model)
    if str(model) in table:
        return from_config(table[str(model)], str(model))
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        names = ", ".join(table)
        raise ValueError(f"unknown model {str(model)!r}: choose from {names}, or give the path of a config.json")
    try:
        return from_config(json.loads(path.read_text(encoding="utf-8")), path.parent.name)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def from_config(config: Config, name: str) -> Architecture:
    """Biases are left out: they are less than a thousandth of the weights."""
    config = config.get("text_config") or config  # of a model that sees, the part that reads
    for key, why in REFUSED.items():
        if config.get(key):
            raise ValueError(f"{key}={config[key]}: {why}, which the cost model does not describe. Take another model")
    if any("attention" not in kind or "linear" in kind for kind in config.get("layer_types") or ()):
        raise ValueError(f"layer_types: {REFUSED['ssm_state_size']}. Take another model")
    kind = config.get("model_type", "")
    hidden, layers, heads = (_number(config, names) for names in (HIDDEN, LAYERS, HEADS))
    kv_heads = _number(config, KV_HEADS, default=1 if config.get("multi_query") else heads)
    head_dim = config.get("head_dim") or hidden // heads
    vocab = _number(config, ("vocab_size",))
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)  # queries, output, keys, values
    mlp = (2 if kind in TWO_MATRICES else 3) * hidden * _number(config, INTERMEDIATE, default=4 * hidden)
    embedding = vocab * hidden
    layer_weights = layers * (attention + mlp + 2 * hidden) + hidden  # with the norms
    tied = config.get("tie_word_embeddings", kind in TIED)
    return Architecture(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        layer_weights=layer_weights,
        output_weights=embedding,
        weights=layer_weights + embedding * (1 if tied else 2),
        max_model_len=_number(config, LENGTH, default=2048),
    )


def _number(config: Config, names: tuple[str, ...], default: int | None = None) -> int:
    found = next((config[name] for name in names if config.get(name) is not None), default)
    if not isinstance(found, int) or found < 1:
        raise ValueError(f"no {' or '.join(names)} in this config (found: {found}), so its cost cannot be computed")
    return found
