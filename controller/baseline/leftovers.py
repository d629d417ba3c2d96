"""No engine of a baseline run or a calibration outlives it, however the run ends. Benchmarks end
theirs by it too.

Before an engine starts its name is written to ``STATE_DIR/baselines/running/``. A guard, a
process of its own, holds the other end of a pipe: when the run ends, also by SIGKILL, it stops
whatever is still written there. One run at a time: it holds a file's lock, which the kernel
gives back with the process.
"""

import fcntl
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from canaryctl.common.errors import ConflictError, TemporaryError
from canaryctl.controller.artifact.wholefile import replace_file
from canaryctl.controller.baseline.record import FOLDER
from canaryctl.runtimes.placements.base import Placement
from canaryctl.runtimes.placements.registry import placement

STOP_GRACE_S: Final = 5.0
_STOPS_S: Final = 4 * STOP_GRACE_S
_GUARD_ENDS_S: Final = 2 * _STOPS_S
_LETS_GO_S: Final = 10.0


class Leftovers:
    """The engines that a run has started, as files. ``placement``: what stops them."""

    def __init__(self, state_dir: Path, place: Placement) -> None:
        self._folder = state_dir / FOLDER / "running"
        self._place = place

    def begin(self, instance: str, digest: str) -> None:
        """To be called before the engine is started."""
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_file(self._folder / f"{instance}.json", json.dumps({"digest": digest}))

    def end(self, instance: str, digest: str) -> None:
        """Stop it and wait until nothing of it is left; TemporaryError when it does not end."""
        until = time.monotonic() + _STOPS_S
        while not self._place.stop(instance, digest, None, grace_s=STOP_GRACE_S):
            if time.monotonic() > until:
                raise TemporaryError(f"the engine {instance} does not end; try again")
            time.sleep(0.1)
        (self._folder / f"{instance}.json").unlink(missing_ok=True)

    def sweep(self) -> tuple[str, ...]:
        """Stop everything that is written down; the names.

        TemporaryError when one could not be stopped: once all the others were.
        """
        left = {
            path.stem: json.loads(path.read_text("utf-8"))["digest"]
            for path in sorted(self._folder.glob("*.json"))
        }
        for name, digest in left.items():  # all are asked before one is waited for
            with suppress(Exception):  # it comes up again below
                self._place.stop(name, digest, None, grace_s=STOP_GRACE_S)
        faults: list[Exception] = []
        for name, digest in left.items():
            try:
                self.end(name, digest)
            except Exception as error:
                faults.append(error)
        if faults:
            raise TemporaryError("; ".join(map(str, faults))) from faults[0]
        return tuple(left)


@contextmanager
def none_left(state_dir: Path, place: Placement) -> Iterator[Leftovers]:
    """Engines that are written down in it are stopped at its end, however it ends; first those
    that an earlier run left. ConflictError while another run goes on."""
    with guarded(state_dir), only_run(state_dir):
        leftovers = Leftovers(state_dir, place)
        leftovers.sweep()
        try:
            yield leftovers
        finally:
            leftovers.sweep()


@contextmanager
def only_run(state_dir: Path) -> Iterator[None]:
    """ConflictError while another baseline run or calibration of this state directory goes on."""
    folder = state_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(
                "another baseline run or calibration goes on here, and two would disturb each "
                "other; wait for it"
            ) from None
        yield


@contextmanager
def guarded(state_dir: Path) -> Iterator[None]:
    """A guard runs meanwhile, and ends before this does. Of a run that ends in good order it finds
    nothing to stop; what the run could not stop it tries again."""
    guard = subprocess.Popen(
        [sys.executable, "-m", __name__, str(state_dir)],
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is not meant for it
    )
    try:
        yield
    finally:
        if guard.stdin is not None:
            guard.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            guard.wait(_GUARD_ENDS_S)


def main(state_dir: Path) -> None:
    """Wait for the end of standard input, then stop what was left."""
    while sys.stdin.buffer.read(1024):
        continue
    until = time.monotonic() + _LETS_GO_S
    while time.monotonic() < until:
        try:
            with only_run(state_dir):
                Leftovers(state_dir, placement("process", state_dir)).sweep()
        except ConflictError:
            # One that is killed lets go of its pipe before its lock; another that has begun
            # meanwhile has swept by itself.
            time.sleep(0.1)
        else:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
