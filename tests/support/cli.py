"""The command line as a person uses it: real processes, a state directory of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

CANARYCTL = str(Path(sys.executable).parent / "canaryctl")
QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """stdout as the one JSON document that it must be."""
        found: dict[str, Any] = json.loads(self.out)
        return found


class Cli:
    """``canaryctl`` with its state in ``state``."""

    def __init__(self, state: Path, **settings: str) -> None:
        self.state = state
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("CANARYCTL_")},
            "CANARYCTL_STATE_DIR": str(state),
            **settings,
        }

    def run(self, *arguments: str | Path, timeout_s: float = 240) -> Done:
        done = subprocess.run(
            [CANARYCTL, *map(str, arguments)],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str | Path) -> "Running":
        """The command in the background, as the leader of a group of its own."""
        process = subprocess.Popen(
            [CANARYCTL, *map(str, arguments)],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return Running(process)

    def release(self, file: Path, *options: str, timeout_s: float = 240) -> Done:
        return self.run("release", file, "--wait", "--json", *options, timeout_s=timeout_s)

    def service(self, name: str = "chat") -> dict[str, Any]:
        services: list[dict[str, Any]] = self.run("status", name, "--json").document["services"]
        return services[0]

    def left_over(self) -> list[str]:
        """Command lines of processes that belong to this state directory."""
        found = []
        for process in psutil.process_iter():
            try:
                line = " ".join(process.cmdline())
                environment = process.environ()
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
            markers = [k for k in environment if k.startswith("CANARYCTL_")]
            mine = any(str(self.state) in environment[k] for k in markers)
            if (mine or str(self.state) in line) and process.pid != os.getpid():
                found.append(line)
        return found


@dataclass(slots=True)
class Running:
    process: subprocess.Popen[str]

    def end(self, timeout_s: float = 60) -> Done:
        """Ask it to end and take what it said."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def kill(self) -> None:
        """As a crash: at once, with no chance to clean up."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def wait(self, timeout_s: float = 240) -> Done:
        out, err = self.process.communicate(timeout=timeout_s)
        return Done(self.process.returncode, out, err)


def eventually(what: str, check: Any, *, timeout_s: float = 30) -> Any:
    """The first true value of ``check()``; AssertionError when there was none in time."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        found = check()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not in {timeout_s:g} s: {what}")
