"""Run an engine and make the process of its model slow: ``slow_core.py OPTIONS NAME COMMAND…``.

It becomes COMMAND, and leaves behind a child of the same group that stops the process called
NAME for ``--stopped`` seconds out of every ``--stopped`` + 0.01 s, from ``--after`` seconds on.
The engine's server answers all the while: only the model's steps take longer.
"""

import argparse
import contextlib
import os
import signal
import time
from collections.abc import Iterator

import psutil


def named(name: str, leader: int) -> Iterator[psutil.Process]:
    for process in psutil.Process(leader).children(recursive=True):
        try:
            title = " ".join(process.cmdline() or [process.name()])
            if name in title and process.pid != os.getpid():  # whose arguments name it too
                yield process
        except psutil.Error:  # it has ended meanwhile
            continue


def slow(name: str, leader: int, stopped_s: float) -> None:
    while os.getppid() == leader:
        for process in named(name, leader):
            while process.is_running() and os.getppid() == leader:
                process.send_signal(signal.SIGSTOP)
                time.sleep(stopped_s)
                process.send_signal(signal.SIGCONT)
                time.sleep(0.01)
        time.sleep(0.1)


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("name")
    reader.add_argument("--after", type=float, default=0.0)
    reader.add_argument("--stopped", type=float, required=True)
    reader.add_argument("command", nargs=argparse.REMAINDER)
    given = reader.parse_args()
    leader = os.getpid()
    if os.fork() == 0:
        time.sleep(given.after)
        with contextlib.suppress(psutil.Error):  # the engine has ended
            slow(given.name, leader, given.stopped)
        os._exit(0)
    os.execvp(given.command[0], given.command)  # noqa: S606 - as a shell's exec does


if __name__ == "__main__":
    main()
