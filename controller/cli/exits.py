"""Exit codes, the same for every command."""

from enum import IntEnum

from canaryctl.common.errors import ConflictError, InputError


class Exit(IntEnum):
    OK = 0  # done; a release: promoted
    ERROR = 1  # anything that has no code of its own
    INPUT = 2  # a file, an option or a name is wrong
    ROLLED_BACK = 3
    HELD = 4  # still not final when the time to wait was over
    REFUSED = 5  # somebody else holds it: another release is active
    FAILED = 6  # no healthy runtime to go back to: a person is needed
    INTERRUPTED = 130  # by Ctrl-C, as shells count it


def exit_of(error: Exception) -> Exit:
    """The code for an error that ended a command."""
    match error:
        case InputError():
            return Exit.INPUT
        case ConflictError():
            return Exit.REFUSED
    return Exit.ERROR
