"""Reading a small file that a person named, without ever hanging on what is none."""

import errno
import os
import stat
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class FileProblem(Exception):  # noqa: N818  caught by the reader's caller, never shown by itself
    """Why a file cannot be read: what was found, what was expected, what to do."""


def read_regular_file(path: Path, limit: int) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes; :class:`FileProblem` otherwise.

    A pipe or a device is recognised before it is opened, and opened without waiting should
    it take the file's place in between.
    """
    try:
        _refuse_special(os.stat(path).st_mode)
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            _refuse_special(os.fstat(file.fileno()).st_mode)
            content = file.read(limit + 1)
    except ValueError:  # a NUL in the name
        raise FileProblem("this name cannot be a file's; check the path") from None
    except OSError as error:
        raise FileProblem(_explain(error)) from None
    if len(content) > limit:
        raise FileProblem(f"found more than {limit} bytes, expected at most that many")
    return content


def _refuse_special(mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "a special file")
        raise FileProblem(f"found {kind}, expected a regular file")


def _explain(error: OSError) -> str:
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return "no such file; check the path"
        case errno.EACCES | errno.EPERM:
            return "not readable; expected a file that you may read, check its permissions"
    return f"not readable: {error.strerror or error}"
