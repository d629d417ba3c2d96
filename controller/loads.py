"""The requests that the controller itself makes at a step with ``load``: the same on every
instance of both arms, straight to the engines, so that latency is compared at equal load.

They are made by a child process, so that thousands of streams never delay a tick. It ends by
itself; a controller that starts again begins the step's load anew.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from canaryctl.controller.artifact.schema import Step
from canaryctl.controller.model import Release
from canaryctl.controller.view import LoadState

DEFAULT_REQUESTS = 200
DEFAULT_RATE_PER_S = 20


@dataclass(slots=True)
class _Run:
    step: int
    process: subprocess.Popen[bytes]
    report: Path
    log: IO[bytes]


class StepLoads:
    """The loads of one service's releases. ``folder``: where reports are written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[str, _Run] = {}

    def state(self, release: Release, step: Step, urls: tuple[str, ...]) -> LoadState:
        """Begin the step's load if it has not begun; say whether it is over."""
        run = self._runs.get(release.id)
        if run is None or run.step != release.step:
            self.stop(release.id)
            if not urls:
                return LoadState()
            run = self._runs[release.id] = self._start(release, step, urls)
        code = run.process.poll()
        if code is None:
            return LoadState()
        if code != 0:
            return LoadState(fault=f"exit code {code}; see {run.log.name}")
        return LoadState(finished=True, fault=_fault(run.report))

    def _start(self, release: Release, step: Step, urls: tuple[str, ...]) -> _Run:
        self._folder.mkdir(parents=True, exist_ok=True)
        report = self._folder / f"{release.id}-step{release.step + 1}.json"
        argv = [sys.executable, "-m", "canaryctl.runtimes.load", "--json"]
        for url in urls:
            argv += ["--target", url]
        argv += ["--requests", str(step.requests or DEFAULT_REQUESTS)]
        if step.load == "generated":
            argv += ["--rate", str(DEFAULT_RATE_PER_S)]
        else:
            argv += ["--profile", str(step.load)]
        log = report.with_suffix(".log").open("wb")
        with report.open("wb") as out:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=log)
        return _Run(release.step, process, report, log)

    def stop(self, release: str) -> None:
        run = self._runs.pop(release, None)
        if run is None:
            return
        if run.process.poll() is None:
            run.process.terminate()
            try:
                run.process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                run.process.kill()
                run.process.wait()
        run.log.close()

    def close(self) -> None:
        for release in list(self._runs):
            self.stop(release)


def _fault(report: Path) -> str | None:
    """A load none of whose requests succeeded has shown nothing."""
    try:
        document = json.loads(report.read_text())
    except ValueError as error:
        return f"its report {report} cannot be read: {error}"
    return None if document["ok"] else f"none of its {document['sent']} requests succeeded"
