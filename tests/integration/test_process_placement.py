"""Detached engines on this machine, with real processes and a controller that is killed."""

import ast
import dataclasses
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from canaryctl.common.errors import PermanentError
from canaryctl.runtimes.engines.base import Launch
from canaryctl.runtimes.placements.base import Handle, InstanceRequest, Liveness
from canaryctl.runtimes.placements.process import ProcessPlacement

DIGEST = "sha256:" + "c" * 64
SLEEP = "import time; time.sleep(60)"
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
print("up", flush=True)
while True: time.sleep(60)
"""
PARENT = """
import subprocess, sys, time
child = [sys.executable, "-c", "import time; time.sleep(60)"]
subprocess.Popen(child)
subprocess.Popen(child, start_new_session=True)
print("up", flush=True)
time.sleep(60)
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[ProcessPlacement]:
    made = ProcessPlacement(tmp_path)
    yield made
    wait_for(lambda: made.stop("one", DIGEST, None, grace_s=0))


def wait_for(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def request_for(code: str = SLEEP, *, launch: Launch | None = None) -> InstanceRequest:
    launch = launch or Launch(argv=(sys.executable, "-c", code))
    return InstanceRequest(instance="one", digest=DIGEST, launch=launch, port=4321)


def marked() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("CANARYCTL_ARTIFACT_DIGEST") == DIGEST:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def is_exited(place: ProcessPlacement, handle: Handle) -> bool:
    return place.status("one", DIGEST, handle).liveness is Liveness.EXITED


def wait_for_log(place: ProcessPlacement, text: str) -> None:
    wait_for(lambda: text in place.log_path("one").read_text())


def test_an_engine_outlives_a_killed_controller_and_is_found_again(
    place: ProcessPlacement, tmp_path: Path
) -> None:
    controller = f"""
import os, pathlib, signal, sys
from canaryctl.runtimes.engines.base import Launch
from canaryctl.runtimes.placements.base import InstanceRequest
from canaryctl.runtimes.placements.process import ProcessPlacement
launch = Launch(argv=(sys.executable, "-c", {SLEEP!r}))
request = InstanceRequest(instance="one", digest={DIGEST!r}, launch=launch, port=4321)
handle = ProcessPlacement(pathlib.Path({str(tmp_path)!r})).ensure(request)
print(handle.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run(
        [sys.executable, "-c", controller], capture_output=True, text=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    pid = int(killed.stdout)
    # As if it had died between the start and the record of it.
    (tmp_path / "instances/one/started.json").unlink()

    found = place.status("one", DIGEST, None)
    assert found.liveness is Liveness.RUNNING
    assert found.handle is not None
    assert (found.handle.pid, found.handle.port) == (pid, 4321)
    assert place.ensure(request_for()).pid == pid
    assert len(marked()) == 1
    wait_for(lambda: place.stop("one", DIGEST, found.handle, grace_s=5))
    assert marked() == []


def test_one_that_ended_before_its_start_was_recorded_is_not_started_again(
    place: ProcessPlacement, tmp_path: Path
) -> None:
    handle = place.ensure(request_for("print('ran')"))
    wait_for(lambda: place.status("one", DIGEST, handle).liveness is Liveness.EXITED)
    (tmp_path / "instances/one/started.json").unlink()
    later = ProcessPlacement(tmp_path)
    assert later.status("one", DIGEST, None).liveness is Liveness.EXITED
    with pytest.raises(PermanentError, match="ran and ended"):
        later.ensure(request_for())
    assert marked() == []


def test_a_recycled_pid_is_not_the_engine(place: ProcessPlacement) -> None:
    handle = place.ensure(request_for())
    other = subprocess.Popen(["sleep", "60"])
    try:
        created_at = psutil.Process(other.pid).create_time()
        for recycled in (
            dataclasses.replace(handle, pid=other.pid),
            dataclasses.replace(handle, pid=other.pid, started_at=created_at),
            dataclasses.replace(handle, started_at=handle.started_at - 60),
        ):
            wait_for(partial(is_exited, place, recycled))
    finally:
        other.kill()
        other.wait()


def test_another_users_process_is_not_adopted(place: ProcessPlacement) -> None:
    if os.getuid() != 0:  # only root can start one that carries the markers; init is root's
        handle = place.ensure(request_for())
        created_at = psutil.Process(1).create_time()
        assert is_exited(place, dataclasses.replace(handle, pid=1, started_at=created_at))
        return
    markers = {
        "CANARYCTL_INSTANCE": "one",
        "CANARYCTL_ARTIFACT_DIGEST": DIGEST,
        "CANARYCTL_INSTANCE_DIR": str(place.log_path("one").parent),
    }
    foreign = subprocess.Popen(
        ["sleep", "60"],
        env={**markers, "CANARYCTL_PORT": "1", "PATH": os.environ["PATH"]},
        user=65534,
        start_new_session=True,
    )
    try:
        assert place.status("one", DIGEST, None).liveness is Liveness.ABSENT
        assert place.ensure(request_for()).pid != foreign.pid
    finally:
        foreign.kill()
        foreign.wait()


def test_stop_takes_the_children_that_outlive_their_parent(place: ProcessPlacement) -> None:
    handle = place.ensure(request_for(PARENT))
    wait_for_log(place, "up")
    os.kill(handle.pid, signal.SIGKILL)
    wait_for(lambda: place.status("one", DIGEST, handle).liveness is Liveness.EXITED)
    assert place.status("one", DIGEST, handle).exit_code == -signal.SIGKILL
    assert place.status("one", DIGEST, None).liveness is Liveness.EXITED
    assert place.ensure(request_for(PARENT)).pid == handle.pid, "a child is not the engine"
    assert len(marked()) == 2
    wait_for(lambda: place.stop("one", DIGEST, handle, grace_s=5))
    assert marked() == []


def test_grace_counts_from_the_first_call_also_of_an_earlier_controller(
    place: ProcessPlacement, tmp_path: Path
) -> None:
    handle = place.ensure(request_for(STUBBORN))
    wait_for_log(place, "up")
    asked_at = 1_000_000.0
    first = ProcessPlacement(tmp_path, now=lambda: asked_at)
    assert not first.stop("one", DIGEST, handle, grace_s=30)
    wait_for_log(place, "asked")
    within = ProcessPlacement(tmp_path, now=lambda: asked_at + 29)
    assert not within.stop("one", DIGEST, handle, grace_s=30)
    time.sleep(0.2)
    assert place.status("one", DIGEST, handle).liveness is Liveness.RUNNING
    after = ProcessPlacement(tmp_path, now=lambda: asked_at + 30)
    wait_for(lambda: after.stop("one", DIGEST, handle, grace_s=30))
    assert place.status("one", DIGEST, handle).exit_code == -signal.SIGKILL


def test_what_was_asked_to_stop_never_starts(place: ProcessPlacement) -> None:
    assert place.stop("one", DIGEST, None, grace_s=5)
    with pytest.raises(PermanentError, match="asked to stop"):
        place.ensure(request_for())
    assert marked() == []


def test_a_program_that_is_not_there_is_named(place: ProcessPlacement) -> None:
    with pytest.raises(PermanentError, match="no-such-engine"):
        place.ensure(request_for(launch=Launch(argv=("/opt/no-such-engine", "--port", "1"))))
    assert place.status("one", DIGEST, None).liveness is Liveness.ABSENT


def test_the_environment_is_clean_and_complete(
    place: ProcessPlacement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the controller alone")
    monkeypatch.setenv("PYTHONPATH", "/of/the/controller")
    launch = Launch(
        argv=(sys.executable, "-c", "import os; print(dict(os.environ))"),
        env={"VLLM_LOGGING_LEVEL": "INFO", "PYTHONPATH": "/of/the/engine"},
        pythonpath=("/probe",),
    )
    request = request_for(launch=launch)
    place.ensure(dataclasses.replace(request, gpus=(2, 3), secrets={"HF_TOKEN": "x"}))
    wait_for_log(place, "}")
    seen = ast.literal_eval(place.log_path("one").read_text())
    assert "AWS_SECRET_ACCESS_KEY" not in seen
    assert seen["PATH"] == os.environ["PATH"]
    assert seen["PYTHONPATH"] == "/probe:/of/the/engine"
    assert seen["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert seen["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert seen["CANARYCTL_INSTANCE"] == "one"
    assert seen["CANARYCTL_ARTIFACT_DIGEST"] == DIGEST
    assert (seen["VLLM_LOGGING_LEVEL"], seen["HF_TOKEN"]) == ("INFO", "x")


def test_without_gpus_the_engines_choice_of_devices_is_left_alone(place: ProcessPlacement) -> None:
    place.ensure(request_for("import os; print('CUDA_VISIBLE_DEVICES' in os.environ)"))
    wait_for_log(place, "\n")
    assert place.log_path("one").read_text() == "False\n"


def test_files_are_for_this_user_alone(place: ProcessPlacement, tmp_path: Path) -> None:
    place.ensure(request_for())
    directory = tmp_path / "instances/one"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}


def test_a_handle_of_another_instance_is_an_error(place: ProcessPlacement) -> None:
    foreign = Handle("two", DIGEST, pid=1, started_at=0.0, port=1, log_path="")
    with pytest.raises(ValueError, match="expected the handle of one"):
        place.stop("one", DIGEST, foreign, grace_s=0)
