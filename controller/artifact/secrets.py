"""Secrets by reference: which names mean one, and reading them when an instance starts.

No message, no repr and no record made here holds a secret's value.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from canaryctl.common.errors import InputError
from canaryctl.controller.artifact.files import FileProblem, read_regular_file
from canaryctl.controller.artifact.schema import SecretRef

HIDDEN: Final = "(hidden)"
_MAX_BYTES: Final = 64 * 1024
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ALWAYS = ("SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "APIKEY", "ACCESSKEY")
_MAY_COUNT = ("TOKEN", "KEY")  # max-token: 5 is a limit, HF_TOKEN: abc is a secret
_NUMBER = re.compile(r"[-+]?[0-9]*\.?[0-9]+|true|false", re.IGNORECASE)
_KNOWN_FORMS = re.compile(
    r"\bhf_[A-Za-z0-9]{20,}|\bsk-[A-Za-z0-9_-]{20,}|\bgh[pousr]_[A-Za-z0-9]{30,}"
    r"|\bAKIA[0-9A-Z]{16}\b|-----BEGIN [A-Z ]*PRIVATE KEY|://[^/\s:@]+:[^/\s@]+@"
)


def names_a_secret(name: str) -> bool:
    """``HF_TOKEN``, ``api-key``, ``dbPassword``; not ``max-num-batched-tokens``, ``TOKENIZERS``."""
    words = [word.upper() for word in _WORD.findall(name)]
    fused = "".join(words)
    return (
        any(word in fused for word in _ALWAYS)
        or any(word in words for word in _MAY_COUNT)
        or fused.endswith("TOKEN")
    )


def is_literal_secret(name: str, value: object) -> bool:
    """Whether ``name: value`` in an artifact gives a secret away."""
    if not isinstance(value, str):
        return False
    if _KNOWN_FORMS.search(value):
        return True
    if not value or not names_a_secret(name):
        return False
    fused = "".join(_WORD.findall(name)).upper()
    return any(word in fused for word in _ALWAYS) or not _NUMBER.fullmatch(value)


def shown(name: str, value: object) -> object:
    """``value`` as it may be printed."""
    return HIDDEN if is_literal_secret(name, value) else value


def resolve_secrets(
    refs: Mapping[str, SecretRef], environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Name → value, read now from ``environ`` (default: this process's) and from files.

    A file's final newline is no part of the value. Every reference that cannot be read is
    named in one InputError; a value never is.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, str] = {}
    problems: list[str] = []
    for name, ref in sorted(refs.items()):
        value, problem = _read(ref, environ)
        if problem is None and not value:
            problem = f"{_source(ref)} is empty; give it a value"
        if problem is None and "\0" in value:
            problem = f"{_source(ref)} holds a NUL character, which no environment can carry"
        if problem is None:
            values[name] = value
        else:
            problems.append(f"secret {name}: {problem}")
    if problems:
        raise InputError("\n".join(problems))
    return values


def _source(ref: SecretRef) -> str:
    if ref.from_env is not None:
        return f"environment variable {ref.from_env}"
    return f"file {ref.from_file}"


def _read(ref: SecretRef, environ: Mapping[str, str]) -> tuple[str, str | None]:
    if ref.from_env is not None:
        if ref.from_env not in environ:
            return "", f"environment variable {ref.from_env} is not set; set it for the controller"
        return environ[ref.from_env], None
    try:
        content = read_regular_file(Path(str(ref.from_file)), _MAX_BYTES)
    except FileProblem as found:
        return "", f"file {ref.from_file}: {found}"
    # Not decoded in a try: the error would carry the content along.
    text = content.decode("utf-8", errors="replace")
    if text.encode("utf-8") != content:
        return "", f"file {ref.from_file}: found bytes that are not UTF-8, expected text"
    return text.removesuffix("\n").removesuffix("\r"), None
