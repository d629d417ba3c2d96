"""Runtime specs for tests: a document, and what one test wants otherwise."""

import copy
from typing import Any

from canaryctl.runtimes.spec import RuntimeSpec


def changed(document: dict[str, Any], **changes: Any) -> RuntimeSpec:
    """``graph__mode="NONE"`` sets ``document["graph"]["mode"]`` of a copy."""
    document = copy.deepcopy(document)
    for path, value in changes.items():
        *parents, leaf = path.split("__")
        place = document
        for parent in parents:
            place = place.setdefault(parent, {})
        place[leaf] = value
    return RuntimeSpec.model_validate(document)
