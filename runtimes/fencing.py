"""Changes on disk that only the newest holder of a lease can make.

A controller that was stopped in the middle of a tick and goes on after another has taken over
must not finish what it began. Asking first is not enough: it may be stopped after the answer.
So every holder changes things by way of a folder of its own, named after its fencing token, and
a later holder takes the folders of earlier ones away before it does anything: moving a file
from there, or starting a process there, then fails in that very system call.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from canaryctl.common.errors import CanaryctlError


class StaleTokenError(CanaryctlError):
    """A holder with a higher token has acted: this one's effect did not land."""


class Fence:
    """Guards one thing. ``folder``: of this fence alone, on the file system of what it guards."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def hold(self, token: int | None) -> Iterator["Stage"]:
        """One at a time among the holders of a token; those of lower ones are shut out for ever.

        ``token`` None: as the newest holder, for those who are alone. StaleTokenError where a
        higher token was here.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if token is None:
            token = max(self._tokens(), default=0)
        stage = Stage(self._folder / str(token), token)
        stage.folder.mkdir(mode=0o700, exist_ok=True)
        for other in self._tokens():  # after one's own is there: of two, at least one sees both
            if other > token:
                raise stage.stale()
            if other < token:
                self._shut_out(other)
        with stage.locked():
            yield stage

    def _tokens(self) -> list[int]:
        return [int(entry.name) for entry in self._folder.iterdir() if entry.name.isdigit()]

    def _shut_out(self, token: int) -> None:
        gone = self._folder / f"gone-{uuid4().hex}"
        with contextlib.suppress(FileNotFoundError):  # another of this token was first
            (self._folder / str(token)).rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


class Stage:
    """The folder through which one holder acts."""

    def __init__(self, folder: Path, token: int) -> None:
        self.folder, self._token = folder, token

    def write(self, path: Path, text: str) -> None:
        """The file ``path``, moved into place whole and from the disk, or StaleTokenError."""
        temporary = self.folder / path.name
        with self._landing():
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.replace(path)

    def remove(self, path: Path) -> None:
        """Away with the file ``path``, or StaleTokenError."""
        gone = self.folder / path.name
        with self._landing():
            path.replace(gone)
            gone.unlink()

    @contextmanager
    def entering(self, folder: Path) -> Iterator[Path]:
        """The way into ``folder`` to start a process there with; StaleTokenError when it is
        closed by then."""
        way = self.folder / "in"
        with self._landing():
            way.unlink(missing_ok=True)
            way.symlink_to(folder)
        with self._landing():
            yield way

    @contextmanager
    def locked(self) -> Iterator[None]:
        with self._landing():
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def stale(self) -> StaleTokenError:
        return StaleTokenError(
            f"another controller has acted here since ({self.folder.parent}: a higher fencing "
            f"token than {self._token}); nothing was changed. If the database was replaced, give "
            "it a state directory of its own"
        )

    @contextmanager
    def _landing(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if self.folder.exists():
                raise
            raise self.stale() from error
