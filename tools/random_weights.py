"""Give a model directory of ``random_model.py`` weights, so that answers can be compared.

    python tools/random_weights.py DIRECTORY      by an interpreter that has torch and safetensors

What ``--load-format dummy`` fills in is so small that every token is as likely as any other,
whatever an engine computes. These are of such sizes that answers differ from prompt to prompt and
hang on every layer; the same at every call on one kind of device.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
from safetensors.torch import save_file  # type: ignore[import-not-found,unused-ignore]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SPREAD = 0.64
"""Of what a matrix makes of inputs with mean 0 and variance 1."""


def write_weights(directory: Path) -> None:
    """Write ``model.safetensors``, in bfloat16."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    generator = torch.Generator(DEVICE).manual_seed(1)

    def normal(rows: int, columns: int, deviation: float) -> Any:
        found = torch.empty(rows, columns, device=DEVICE)
        return found.normal_(0.0, deviation, generator=generator).to(torch.bfloat16).cpu()

    def matrix(rows: int, columns: int) -> Any:
        return normal(rows, columns, SPREAD / columns**0.5)

    def ones(size: int) -> Any:
        return torch.ones(size, dtype=torch.bfloat16)

    hidden, inner, head = (config[k] for k in ("hidden_size", "intermediate_size", "head_dim"))
    query, key = (config[k] * head for k in ("num_attention_heads", "num_key_value_heads"))
    weights = {
        "model.embed_tokens.weight": normal(config["vocab_size"], hidden, 0.1),
        "model.norm.weight": ones(hidden),
    }
    if not config["tie_word_embeddings"]:
        # As sure of its answers as the tied shape, whose embeddings of 1,024 numbers are its head.
        weights["lm_head.weight"] = normal(config["vocab_size"], hidden, 3.2 / hidden**0.5)
    for number in range(config["num_hidden_layers"]):
        layer = {
            "input_layernorm": ones(hidden),
            "self_attn.q_proj": matrix(query, hidden),
            "self_attn.k_proj": matrix(key, hidden),
            "self_attn.v_proj": matrix(key, hidden),
            "self_attn.q_norm": ones(head),
            "self_attn.k_norm": ones(head),
            "self_attn.o_proj": matrix(hidden, query),
            "post_attention_layernorm": ones(hidden),
            "mlp.gate_proj": matrix(inner, hidden),
            "mlp.up_proj": matrix(inner, hidden),
            "mlp.down_proj": matrix(hidden, inner),
        }
        weights |= {f"model.layers.{number}.{name}.weight": w for name, w in layer.items()}
    save_file(weights, directory / "model.safetensors")


if __name__ == "__main__":
    write_weights(Path(sys.argv[1]))
