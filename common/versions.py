"""Versions of drivers, engines and libraries: dotted numbers and constraints on them."""

import re

_CONSTRAINT = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)\s*")


def satisfies(version: str, constraint: str) -> bool:
    """Whether a dotted number fits constraints such as ``>=580.65`` or ``>=580,<590``.

    ValueError says what is wrong with the constraint or the version.
    """
    found = numbers(version)
    for part in constraint.split(","):
        match = _CONSTRAINT.fullmatch(part)
        if match is None:
            raise ValueError(
                f"found the constraint {constraint!r}, expected one such as '>=580.65' "
                "or '>=580,<590'"
            )
        operator, wanted = match.group(1), numbers(match.group(2))
        length = max(len(found), len(wanted))
        left, right = padded(found, length), padded(wanted, length)
        holds = {
            ">=": left >= right,
            "<=": left <= right,
            ">": left > right,
            "<": left < right,
            "==": left == right,
            "!=": left != right,
        }
        if not holds[operator]:
            return False
    return True


def numbers(version: str) -> tuple[int, ...]:
    """Of a dotted version; ValueError says what is allowed."""
    if not re.fullmatch(r"\d+(\.\d+)*", version):
        raise ValueError(f"found {version!r}, expected a version such as 580.65.06")
    return tuple(int(part) for part in version.split("."))


def padded(parts: tuple[int, ...], length: int) -> tuple[int, ...]:
    """With zeros until there are ``length``."""
    return parts + (0,) * (length - len(parts))
