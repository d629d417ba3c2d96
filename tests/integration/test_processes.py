"""Real processes: started detached, found again by another reader, ended with their family."""

import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from canaryctl.runtimes.processes import LocalProcess, Processes, clean_environment

FAMILY = """
import subprocess, sys, time, signal
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
subprocess.Popen(sleeper)
subprocess.Popen(sleeper, start_new_session=True)
print("family complete", flush=True)
time.sleep(60)
"""


@pytest.fixture
def markers() -> dict[str, str]:
    return {"CANARYCTL_INSTANCE": f"test-{uuid.uuid4()}", "CANARYCTL_ARTIFACT_DIGEST": "sha256:1"}


@pytest.fixture
def processes(markers: dict[str, str]) -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.stop_and_wait(markers, grace_s=0, timeout_s=5)


def eventually(condition: Callable[[], bool], timeout_s: float = 5) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def start(
    processes: Processes, markers: dict[str, str], log: Path, code: str, *args: str
) -> LocalProcess:
    return processes.start(
        [sys.executable, "-c", code, *args], markers=markers, env=clean_environment(), log_path=log
    )


def test_another_reader_finds_it_and_none_other(
    processes: Processes, markers: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "logs" / "out.log"
    process = start(processes, markers, log, FAMILY)
    assert eventually(lambda: "family complete" in log.read_text())
    reader = Processes()
    assert reader.find(markers) == process
    assert reader.find({**markers, "CANARYCTL_ARTIFACT_DIGEST": "sha256:2"}) is None
    assert reader.status(process).running
    assert not reader.status(LocalProcess(process.pid, process.created_at - 100)).running
    assert len(reader.members(markers, process)) == 3


def test_its_environment_is_explicit_and_it_is_detached(
    processes: Processes, markers: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_CONTROLLER", "x")
    log = tmp_path / "out.log"
    process = start(
        processes,
        markers,
        log,
        "import os; print(sorted(os.environ), os.getsid(0) == os.getpid())",
    )
    assert eventually(lambda: not processes.status(process).running)
    output = log.read_text()
    assert "CANARYCTL_INSTANCE" in output
    assert "SPT_NOENV" in output  # or a changed process title would wipe the markers out
    assert "SECRET_OF_THE_CONTROLLER" not in output
    assert output.strip().endswith("True")
    assert os.stat(log).st_mode & 0o077 == 0


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (3, 3)])
def test_the_parent_learns_the_exit_code_and_others_do_not(
    code: int, expected: int, processes: Processes, markers: dict[str, str], tmp_path: Path
) -> None:
    process = start(processes, markers, tmp_path / "log", f"raise SystemExit({code})")
    # Before the parent reaps it, it is a zombie: ended all the same.
    assert eventually(lambda: not Processes().status(process).running)
    assert Processes().find(markers) is None
    assert processes.status(process).exit_code == expected
    assert processes.status(process).exit_code == expected
    assert Processes().status(process).exit_code is None


@pytest.mark.parametrize("manner", ["willing", "deaf"])
def test_stop_ends_the_whole_family_and_does_not_wait(
    manner: str, processes: Processes, markers: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    process = start(processes, markers, log, FAMILY, manner)
    assert eventually(lambda: "family complete" in log.read_text())
    began = time.monotonic()
    assert not processes.stop(markers, process, grace_s=0.3)
    assert time.monotonic() - began < 0.2
    assert eventually(lambda: processes.stop(markers, process, grace_s=0.3), 3)
    assert Processes().members(markers, process) == ()
    ended_by = signal.SIGTERM if manner == "willing" else signal.SIGKILL
    assert processes.status(process).exit_code == -ended_by
    assert processes.stop(markers, process, grace_s=0.3)


def test_what_its_dead_leader_leaves_behind_is_ended_too(
    processes: Processes, markers: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    process = start(processes, markers, log, FAMILY)
    assert eventually(lambda: "family complete" in log.read_text())
    os.kill(process.pid, signal.SIGKILL)
    assert eventually(lambda: not processes.status(process).running)
    assert len(processes.members(markers, process)) == 2
    assert processes.stop_and_wait(markers, process, grace_s=1, timeout_s=5)
    assert Processes().members(markers, process) == ()


def test_markers_are_never_empty_nor_foreign(processes: Processes) -> None:
    for markers in ({}, {"PATH": os.environ["PATH"]}):
        with pytest.raises(ValueError, match="markers"):
            processes.stop(markers, grace_s=0)
        with pytest.raises(ValueError, match="markers"):
            processes.find(markers)
