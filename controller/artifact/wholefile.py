"""Files as a whole: replaced or left as they are, and JSON documents that say what they are."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from canaryctl.common.errors import InputError


def replace_file(path: Path, text: str) -> None:
    """Its permissions stay; where it is a link, what it points to is replaced."""
    target = Path(os.path.realpath(path))
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            mode = target.stat().st_mode & 0o7777 if target.exists() else 0o644
            os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def require_replaceable(path: Path) -> None:
    """InputError where :func:`replace_file` could not write it: to be asked before long work."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise InputError(f"{path} is no regular file; expected the name of one to write")
    if not target.parent.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {target.parent}; make it")
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error}") from error


def read_document(path: Path, kind: str, what: str) -> dict[str, Any]:
    """The JSON document whose ``format`` is ``kind``; InputError where it is none. ``what``: the
    kind in words."""
    try:
        found: Any = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: no {what} can be read: {error}") from error
    if not isinstance(found, dict) or found.get("format") != kind:
        raise InputError(f"{path}: found no {what}, expected format {kind}")
    return found


def digest_name(digest: str) -> str:
    """A digest as part of a file's name."""
    return digest.replace(":", "-")
