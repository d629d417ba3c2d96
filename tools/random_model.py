"""Write a model directory without weights: a Qwen3 configuration and a byte tokenizer.

    python tools/random_model.py DIRECTORY            the shape of Qwen3-0.6B
    python tools/random_model.py DIRECTORY --tiny     two layers, for engines on a CPU

Start the engine with ``--load-format dummy``: it fills in random weights. Launch overhead,
capture time and graph memory do not depend on what the weights are; the text is noise.
Needs the standard library alone.
"""

import argparse
import json
from pathlib import Path
from typing import Any

END = "<|endoftext|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

QWEN3_0_6B: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}
TINY: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}


def byte_characters() -> list[str]:
    """The printable stand-in of each byte, 0 to 255, as byte-level BPE writes them."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(stand_ins)) for byte in range(256)]


def tokenizer() -> dict[str, Any]:
    """A byte-level BPE without merges: one token a byte, and one for the end."""
    vocabulary = {character: index for index, character in enumerate(sorted(byte_characters()))}
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    end = {
        "id": len(vocabulary),
        "content": END,
        "special": True,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary | {END: len(vocabulary)},
            "merges": [],
        },
    }


def write_model(directory: Path, *, tiny: bool) -> None:
    """Write ``config.json``, ``tokenizer.json`` and ``tokenizer_config.json``."""
    end_id = len(byte_characters())
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "eos_token_id": end_id,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "attention_bias": False,
        "rope_theta": 1000000.0,
        **(TINY if tiny else QWEN3_0_6B),
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "model_max_length": config["max_position_embeddings"],
        "chat_template": CHAT_TEMPLATE,
    }
    directory.mkdir(parents=True, exist_ok=True)
    for name, document in (
        ("config.json", config),
        ("tokenizer.json", tokenizer()),
        ("tokenizer_config.json", tokenizer_config),
    ):
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        (directory / name).write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--tiny", action="store_true", help="two layers, for engines on a CPU")
    options = parser.parse_args()
    write_model(options.directory, tiny=options.tiny)


if __name__ == "__main__":
    main()
