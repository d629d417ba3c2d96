"""One YAML scalar → a plain value, or a complaint where two readers would differ."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Final

import yaml

from canaryctl.controller.artifact.mistakes import quoted

Scalar = str | int | float | bool | None
Resolved = tuple[Scalar, str | None]
"""The value, and why it must not be used (None: it may)."""

_DECIMAL_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_DECIMAL_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_TRUE_WORDS = frozenset({"true", "yes", "on"})
_SURROGATE = re.compile("[\ud800-\udfff]")
_RESOLVER: Final = yaml.resolver.Resolver()


def resolve(text: str, *, plain: bool) -> Resolved:
    """``plain``: written without quotes, so that YAML 1.1 may read it as something else."""
    if "\0" in text:
        return "", "found a NUL character, expected text without one"
    if _SURROGATE.search(text):
        return "", "found half a surrogate pair, expected a character"
    if not plain:
        return text, None
    tag: str = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return _PLAIN.get(tag.rpartition(":")[2], _text)(text)


def _text(text: str) -> Resolved:
    return text, None


def _null(_: str) -> Resolved:
    return None, None


def _bool(text: str) -> Resolved:
    return text.lower() in _TRUE_WORDS, None


def _int(text: str) -> Resolved:
    return (int(text), None) if _DECIMAL_INT.fullmatch(text) else _odd_number(text)


def _float(text: str) -> Resolved:
    if _DECIMAL_FLOAT.fullmatch(text) and math.isfinite(float(text)):
        return float(text), None
    return _odd_number(text)


def _date(text: str) -> Resolved:
    return text, f"found {text[:60]}, which YAML reads as a date; quote it: {quoted(text)}"


def _odd_number(text: str) -> Resolved:
    return text, (
        f"found {text[:60]}, a number that YAML readers take differently or not at all; "
        "write it in plain decimal, or quote it if it is text"
    )


_PLAIN: Mapping[str, Callable[[str], Resolved]] = {
    "null": _null,
    "bool": _bool,
    "int": _int,
    "float": _float,
    "timestamp": _date,
}
