"""A calibration has its GPU to itself: neither services' engines nor anybody else is on it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from canaryctl.common.errors import ConflictError
from canaryctl.controller import compose as composition
from canaryctl.controller.baseline.leftovers import only_run
from canaryctl.controller.baseline.stages import Stage
from canaryctl.controller.compose import App, compose, lone_gpu, stage_engines
from canaryctl.controller.errors import NoGpuError
from canaryctl.controller.model import GpuClaim, InstanceState, Lease
from canaryctl.controller.settings import Settings
from canaryctl.controller.store import Store
from tests.support.simulated import simulated_spec
from tests.support.stored import DOCUMENT, NOW, fence, instance, started

__all__ = ["fence", "started"]

SPEC = simulated_spec(gpu={"count": 1, "memory_fraction": 0.2, "share": True})
DOCUMENT_OF_SPEC = DOCUMENT.model_copy(update={"runtime": SPEC, "secrets": {}})


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    state = {"CANARYCTL_STATE_DIR": str(tmp_path / "state"), "CANARYCTL_SIMULATED_GPUS": "2"}
    found = compose(Settings.from_environment(state))
    yield found
    found.close()


@pytest.fixture
def store(app: App) -> Store:
    return app.store


def holds(store: Store, fence: Lease, name: str, gpu: int, inventory: str = "simulated") -> None:
    """A service's engine that shares that GPU."""
    claim = GpuClaim(inventory, (gpu,), 1, 0.2, share=True)
    added = store.add_instance(instance(name), fence=fence, now=NOW, gpus=claim)
    store.update_instance(replace(added, state=InstanceState.READY), fence=fence, now=NOW)


@pytest.mark.usefixtures("started")
def test_no_engine_of_a_service_is_beside_it(app: App, store: Store, fence: Lease) -> None:
    holds(store, fence, "stable", 0)
    with stage_engines(app, DOCUMENT_OF_SPEC, pool="calibration", alone=True) as engines:
        up = engines.start(Stage("eager", SPEC), 60)
        assert up.instance.gpus == (1,)
        assert up.instance.id.startswith("calibration-")
        engines.require_alone(up)
        holds(store, fence, "canary", 1)
        with pytest.raises(ConflictError, match="canary came onto GPU 1 while eager"):
            engines.require_alone(up)
        engines.stop(up.instance.id)
        with pytest.raises(NoGpuError, match=r"GPU 0: held by stable \(this claim does not share"):
            engines.start(Stage("eager", SPEC), 60)
    with stage_engines(app, DOCUMENT_OF_SPEC, pool="baseline-run") as engines:
        shared = engines.start(Stage("eager", SPEC), 60)
        assert shared.instance.gpus == (0,), "a baseline run shares what its artifact shares"


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three GPUs; a process is on the first."""
    rows = [
        f"{index}, NVIDIA H200, 143771, {143161 - used}, {used}, 580.159.04"
        for index, used in enumerate((9120, 4, 0))
    ]
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    composition._local_machine.cache_clear()
    yield
    composition._local_machine.cache_clear()


@pytest.mark.usefixtures("started", "gpus")
def test_nobody_is_on_the_gpu_of_a_measurement_without_an_engine(
    app: App, store: Store, fence: Lease
) -> None:
    with lone_gpu(app) as found:
        assert found == (1,)
        with pytest.raises(ConflictError, match="another"), only_run(app.settings.state_dir):
            pass
    for gpu in (1, 2):
        holds(store, fence, f"stable-{gpu}", gpu, "local")
    said = r"GPU 0: held by other processes, 9120 MiB in use.*GPU 1: held by stable-1"
    with pytest.raises(NoGpuError, match=said), lone_gpu(app):
        pass


def test_a_machine_without_a_gpu_has_none_to_itself(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    composition._local_machine.cache_clear()
    with lone_gpu(app) as found:
        assert found == ()
    composition._local_machine.cache_clear()
