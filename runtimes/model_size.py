"""How large a model is, from its folder: weights, and KV cache of one token.

Weights are the sizes of its safetensors files, or, without any, follow from the configuration of
a plain dense decoder. The KV cache of a token is 2 × layers × KV heads × head size × bytes of an
element, which holds for full attention in every layer alone. What does not fit is not known.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from canaryctl.runtimes.spec import RuntimeSpec

_DENSE: Final = frozenset(
    {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
)
_TWO_BYTES: Final = frozenset({"bfloat16", "float16"})


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Bytes of the whole model; None: not known. ``weights_told``, ``kv_told``: where from, or
    why not. ``kv_heads``: by which the cache of a token divides among GPUs."""

    weights_bytes: int | None
    kv_bytes_per_token: int | None
    weights_told: str
    kv_told: str
    kv_heads: int | None = None

    def on_one_gpu(self, spec: RuntimeSpec) -> tuple[int | None, int | None]:
        """(weights, KV cache of a token) on one GPU of a parallel set; layers and heads are taken
        to divide evenly."""
        tensor, pipeline = spec.parallel.tensor, spec.parallel.pipeline
        weights = self.weights_bytes and -(-self.weights_bytes // (tensor * pipeline))
        kv = None
        if self.kv_bytes_per_token is not None and self.kv_heads is not None:
            # More GPUs than KV heads keep copies of them.
            kv = self.kv_bytes_per_token // (min(tensor, self.kv_heads) * pipeline)
        return weights, kv


def model_size(spec: RuntimeSpec, environ: Mapping[str, str] | None = None) -> ModelSize:
    """Of the model's folder, or of its snapshot in the Hugging Face cache of this machine."""
    folder = _folder(spec, {**(os.environ if environ is None else environ), **spec.engine.env})
    if folder is None:
        why = f"{spec.model.id} is no folder here, and no snapshot of its revision is cached"
        return ModelSize(None, None, why, why)
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        why = f"{folder}/config.json cannot be read: {error}"
        return ModelSize(None, None, why, why)
    if not isinstance(config, dict):
        why = f"{folder}/config.json holds no object"
        return ModelSize(None, None, why, why)
    weights, weights_told = _weights(spec, folder, config)
    kv, kv_told = _kv_per_token(spec, config)
    heads = config.get("num_key_value_heads", config.get("num_attention_heads"))
    return ModelSize(weights, kv, weights_told, kv_told, heads if kv is not None else None)


def is_local(model: str) -> bool:
    """Whether ``model`` is a folder's path and no name on a hub."""
    return model.startswith(("/", "./", "../", "~")) or Path(model).is_dir()


def _folder(spec: RuntimeSpec, environ: Mapping[str, str]) -> Path | None:
    path = Path(spec.model.id)
    if path.is_dir():
        return path
    home = Path(environ.get("HF_HOME") or Path(environ.get("HOME", "/")) / ".cache/huggingface")
    hub = Path(environ.get("HF_HUB_CACHE") or home / "hub")
    if spec.model.revision is None:
        return None
    model = "models--" + spec.model.id.replace("/", "--")
    snapshot = hub / model / "snapshots" / spec.model.revision
    return snapshot if snapshot.is_dir() else None


def _weights(spec: RuntimeSpec, folder: Path, config: Mapping[str, Any]) -> tuple[int | None, str]:
    if spec.engine.args.keys() & {"dtype", "torch-dtype", "hf-overrides"}:
        return None, "engine.args change the type or the shape of the weights"
    quantized = "quantization_config" in config
    if spec.model.quantization is not None and not quantized:
        return None, f"{spec.model.quantization} is made of them while they are loaded"
    kept_as = config.get("dtype", config.get("torch_dtype"))
    if not quantized and kept_as not in _TWO_BYTES:
        return None, f"they are kept as {kept_as}, and loaded as another type"
    files = [file.stat().st_size for file in folder.glob("*.safetensors")]
    if files:
        return sum(files), f"safetensors files in {folder}"
    if quantized or not _DENSE.issuperset(config.get("architectures") or [None]):
        return None, f"{folder} has no safetensors files, and its shape is no plain decoder's"
    try:
        return 2 * _parameters(config), f"the shape in {folder}/config.json"
    except (LookupError, TypeError) as error:
        return None, f"{folder}/config.json does not give the shape: {error!r}"


def _parameters(config: Mapping[str, Any]) -> int:
    """Of a dense decoder with grouped attention and a gated MLP; norms, which are few, left out."""
    hidden, layers = int(config["hidden_size"]), int(config["num_hidden_layers"])
    heads = int(config["num_attention_heads"])
    head = int(config.get("head_dim") or hidden // heads)
    kv_heads = int(config.get("num_key_value_heads", heads))
    attention = 2 * hidden * head * (heads + kv_heads)
    mlp = 3 * hidden * int(config["intermediate_size"])
    embeddings = int(config["vocab_size"]) * hidden
    ends = 1 if config.get("tie_word_embeddings") else 2
    return layers * (attention + mlp) + ends * embeddings


def _kv_per_token(spec: RuntimeSpec, config: Mapping[str, Any]) -> tuple[int | None, str]:
    kinds = set(config.get("layer_types") or ()) - {"full_attention"}
    if kinds or "kv_lora_rank" in config:
        return None, "not every layer keeps keys and values of full attention"
    kept_as = spec.model.kv_cache_dtype or "auto"
    element = 1 if kept_as.startswith("fp8") else 2
    if kept_as not in ("auto", *_TWO_BYTES) and element == 2:
        return None, f"kv_cache_dtype {kept_as} is not known here"
    try:
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        head = int(config.get("head_dim") or hidden // heads)
        kv_heads = int(config.get("num_key_value_heads", heads))
        layers = int(config["num_hidden_layers"])
    except (LookupError, TypeError, ValueError) as error:
        return None, f"config.json does not give the shape: {error!r}"
    return 2 * layers * kv_heads * head * element, "the shape in config.json"
