"""The root of the error tree.

    CanaryctlError
    ├── InputError                 what the user gave is wrong; exit code 2
    │   ├── UnknownNameError       a name that is none of the allowed ones
    │   └── (runtimes, gates and controller add their own)
    ├── ConflictError              somebody else holds what was asked for; exit code 5
    ├── TemporaryError             worth another try: the next tick makes it
    └── PermanentError             no retry will help

An error says what was found, what was expected and what to do.
"""

from collections.abc import Iterable


class CanaryctlError(Exception):
    """Any error that canaryctl raises on purpose."""


class InputError(CanaryctlError):
    """What the user gave is wrong: a file, an option, a name."""


class UnknownNameError(InputError):
    """A name that is none of the allowed ones."""

    def __init__(self, kind: str, found: str, allowed: Iterable[str]) -> None:
        self.kind, self.found, self.allowed = kind, found, tuple(sorted(allowed))
        super().__init__(f"unknown {kind} {found!r}; one of: {', '.join(self.allowed) or 'none'}")


class ConflictError(CanaryctlError):
    """Somebody else holds what was asked for."""


class TemporaryError(CanaryctlError):
    """It failed now and may succeed at the next tick."""


class PermanentError(CanaryctlError):
    """No retry will help."""
