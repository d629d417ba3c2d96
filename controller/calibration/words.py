"""On what and with what a calibration was measured, in words."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from canaryctl.runtimes.engines.base import Engine, runs_as
from canaryctl.runtimes.machine import inspect_machine
from canaryctl.runtimes.model_size import is_local
from canaryctl.runtimes.spec import RuntimeSpec

_SHAPE: Final = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden",
    "intermediate_size": "intermediate",
    "num_attention_heads": "heads",
    "num_key_value_heads": "KV heads",
    "head_dim": "head size",
}


def machine_words(engine: Engine, gpus: Collection[int]) -> str:
    """Of those GPUs of this machine."""
    if engine.simulated:
        return "a simulated GPU"
    used = [gpu for gpu in inspect_machine().gpus if gpu.index in gpus]
    names = " and ".join(dict.fromkeys(gpu.name for gpu in used)) or "GPU"
    drivers = "".join(dict.fromkeys(f", driver {gpu.driver}" for gpu in used if gpu.driver))
    return f"{'one' if len(gpus) == 1 else len(gpus)} {names}{drivers}"


def engine_words(engine: Engine, runtime: RuntimeSpec, attested: Mapping[str, str]) -> str:
    """As plans compare it with the engine of an artifact, and the torch that it attests."""
    torch = attested.get("torch_version")
    return runs_as(engine, runtime) + (f", torch {torch}" if torch else "")


def model_words(runtime: RuntimeSpec, given: str | None) -> str:
    """``given``: what to call the model; None: its name, or the shape of one in a local folder,
    whose path says nothing to others."""
    model, speculative = runtime.model, runtime.speculative
    name = given or (_shape(Path(model.id)) if is_local(model.id) else model.id)
    guesses = speculative and f"{speculative.num_speculative_tokens} tokens by {speculative.method}"
    return (
        f"{name}, max_model_len {runtime.limits.max_model_len}"
        + (f", speculative decoding of {guesses}" if guesses else "")
    )  # fmt: skip


def _shape(folder: Path) -> str:
    """By its ``config.json``, and by the folder's name where that does not say."""
    try:
        config: Any = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        config = None
    if not isinstance(config, dict):
        return f"a model in a folder {folder.name}"
    kinds = config.get("architectures")
    kind = kinds[0] if isinstance(kinds, list) and kinds else "a model"
    shape = [f"{words} {config[name]}" for name, words in _SHAPE.items() if name in config]
    return " of ".join(filter(None, (str(kind), ", ".join(shape))))
