"""The name of a runtime by its content."""

import hashlib
import json
from typing import Any

from canaryctl.runtimes.spec import RuntimeSpec


def canonical_json(runtime: RuntimeSpec) -> str:
    """The one text that stands for a runtime, the same on every machine and Python.

    - the whole ``runtime`` section and nothing else of the artifact;
    - defaults are written out, so that a default that changes later does not change what an
      old digest means; an optional field that is not set is left out, so that a field added
      later does not change old digests;
    - JSON in ASCII, no spaces, keys sorted by code point, lists in their own order;
    - a field that holds a real number always has its decimal point (``1`` is ``1.0``), in the
      shortest form that reads back the same; an engine argument stays as it was written, for
      ``--x 1`` and ``--x 1.0`` are not the same command line.
    """
    return json.dumps(
        _set_only(runtime.as_document()),
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=True,
        allow_nan=False,
    )


def digest_of(runtime: RuntimeSpec) -> str:
    """``sha256:`` and 64 hexadecimal digits over :func:`canonical_json`."""
    return "sha256:" + hashlib.sha256(canonical_json(runtime).encode("ascii")).hexdigest()


def short(digest: str) -> str:
    """Twelve digits, for people; a prefix that the store resolves again."""
    return digest.removeprefix("sha256:")[:12]


def _set_only(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _set_only(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_set_only(inner) for inner in value]
    return value
