"""The requests that the controller itself makes at a step with ``load``: the same on every
instance of both arms, straight to the engines, so that latency is compared at equal load.

They are made by a child process, so that thousands of streams never delay a tick. It goes on
until the step is over and ends with the controller: its standard input closes. A controller
that starts again begins it anew.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from canaryctl.common.units import format_duration
from canaryctl.controller.artifact.schema import Step
from canaryctl.controller.model import Release
from canaryctl.controller.view import LoadState

DEFAULT_RATE_PER_S = 20
STOP_S = 5.0


@dataclass(slots=True)
class _Run:
    step: int
    urls: tuple[str, ...]
    process: subprocess.Popen[bytes]
    log: Path


class StepLoads:
    """The loads of one service's releases. ``folder``: where reports and logs are written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[str, _Run] = {}

    def state(self, release: Release, step: Step, urls: tuple[str, ...]) -> LoadState:
        """Begin the step's load if it has not begun, and say whether it goes on. It begins anew
        when an engine has come or gone, so that all of them are asked the same."""
        run = self._runs.get(release.id)
        if run is None or (run.step, run.urls) != (release.step, urls):
            self.stop(release.id)
            if not urls:
                return LoadState()
            run = self._runs[release.id] = self._start(release, step, urls)
        code = run.process.poll()
        if code is None:
            return LoadState()
        return LoadState(fault=f"it ended with exit code {code}; see {run.log}")

    def _start(self, release: Release, step: Step, urls: tuple[str, ...]) -> _Run:
        self._folder.mkdir(parents=True, exist_ok=True)
        report = self._folder / f"{release.id}-step{release.step + 1}.json"
        argv = [sys.executable, "-m", "canaryctl.runtimes.load", "--json", "--until-eof"]
        for url in urls:
            argv += ["--target", url]
        limit_s = release.document.rollout.progress_deadline
        argv += ["--for", format_duration(limit_s)]
        if step.load == "generated":
            argv += ["--rate", str(DEFAULT_RATE_PER_S)]
        else:
            argv += ["--profile", str(step.load)]
        log = report.with_suffix(".log")
        with report.open("wb") as out, log.open("wb") as errors:
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=out, stderr=errors)
        return _Run(release.step, urls, process, log)

    def stop(self, release: str) -> None:
        """End the load of a release, if it has one; its report is written then."""
        run = self._runs.pop(release, None)
        if run is None:
            return
        if run.process.stdin is not None:
            run.process.stdin.close()
        try:
            run.process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            run.process.kill()
            run.process.wait()

    def close(self) -> None:
        for release in list(self._runs):
            self.stop(release)
