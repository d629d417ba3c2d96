"""Which commit of a model was loaded, by the files that it was loaded from."""

import importlib
import re
from pathlib import Path
from typing import Any

from .unknown import UnknownError

_SNAPSHOT = re.compile(r"/snapshots/([0-9a-f]{40})(?:/|$)")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def loaded_revision(model: Any) -> str:
    """The commit on the Hugging Face hub. UnknownError for files that name none.

    ``model``: vLLM's ModelConfig. What was asked for counts only where it is a commit itself (a
    branch or a tag moves) and the hub was asked for it: of files elsewhere nobody compares it.
    """
    name = str(model.model)
    elsewhere = "://" in name or Path(name).exists()
    for told in (
        lambda: getattr(model.hf_config, "_commit_hash", None),  # where transformers found it
        lambda: _in_path(name),
        *(() if elsewhere else (lambda: model.revision, lambda: _cached(name, model.revision))),
    ):
        found = told()
        if isinstance(found, str) and _COMMIT.fullmatch(found):
            return found
    if not elsewhere:
        raise UnknownError(f"the files of {name} name no commit")
    asked = f", and nobody compared them with the {model.revision} asked for"
    raise UnknownError(f"the files of {name} name no commit{asked if model.revision else ''}")


def _in_path(path: str) -> str | None:
    found = _SNAPSHOT.search(path)
    return found.group(1) if found else None


def _cached(repository: str, revision: str | None) -> str | None:
    """The snapshot folder that the hub's own cache would load; asks the disk alone."""
    hub = importlib.import_module("huggingface_hub")  # which vLLM has loaded the model with
    path = hub.try_to_load_from_cache(repository, "config.json", revision=revision)
    return _in_path(path) if isinstance(path, str) else None
