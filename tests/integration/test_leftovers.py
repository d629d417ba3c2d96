"""Engines of a baseline run are stopped, whatever one of them raises."""

import subprocess
import sys
from pathlib import Path

import pytest

from canaryctl.common.errors import TemporaryError
from canaryctl.controller.baseline.leftovers import Leftovers, none_left, only_run
from canaryctl.controller.baseline.leftovers import __name__ as leftovers_module
from canaryctl.runtimes.engines.base import Launch
from canaryctl.runtimes.placements.base import InstanceRequest, Liveness
from canaryctl.runtimes.placements.process import ProcessPlacement

DIGEST = "sha256:" + "c" * 64
SLEEP = Launch(argv=(sys.executable, "-c", "import time; time.sleep(60)"))


def test_one_that_cannot_be_stopped_keeps_no_other(tmp_path: Path) -> None:
    place = ProcessPlacement(tmp_path)

    def runs(name: str) -> bool:
        return place.status(name, DIGEST, None).liveness is Liveness.RUNNING

    refused = pytest.raises(TemporaryError, match="no name")
    with refused, none_left(tmp_path, place) as leftovers:
        for name in ("one", "no name", "two"):
            leftovers.begin(name, DIGEST)
        for name in ("one", "two"):
            place.ensure(InstanceRequest(name, DIGEST, SLEEP, place.free_port()))
            assert runs(name)
    assert not runs("one")
    assert not runs("two")
    with pytest.raises(TemporaryError, match="no name"):
        leftovers.sweep()


def test_the_guard_waits_for_a_killed_run_to_let_go_of_its_lock(tmp_path: Path) -> None:
    place = ProcessPlacement(tmp_path)
    Leftovers(tmp_path, place).begin("one", DIGEST)
    place.ensure(InstanceRequest("one", DIGEST, SLEEP, place.free_port()))
    guard = [sys.executable, "-m", leftovers_module, str(tmp_path)]
    with only_run(tmp_path):
        guarding = subprocess.Popen(guard, stdin=subprocess.DEVNULL)
        with pytest.raises(subprocess.TimeoutExpired):
            guarding.wait(2)
    assert guarding.wait(20) == 0
    assert place.status("one", DIGEST, None).liveness is not Liveness.RUNNING
