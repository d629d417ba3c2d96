"""Real vLLM on the CPU, released by the command line: promoted, killed, and made slower."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from canaryctl.controller.states import Phase
from tests.support.cli import Cli, Running, eventually
from tests.support.cpu_vllm import CORE, cpu_runtime, cpu_vllm_python, tiny_model
from tests.support.prometheus import Prometheus
from tests.support.watching import store_of

__all__ = ["cpu_vllm_python", "tiny_model"]

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]

RATE_PER_S = 12
SLOW_CORE = Path(__file__).parents[1] / "support" / "slow_core.py"


class Factory:
    """Writes artifacts of one CPU runtime; ``command`` replaces how its process begins."""

    def __init__(self, folder: Path, python: Path, model: Path) -> None:
        self._folder, self._python, self._model = folder, python, model
        self.load = folder / "load.yaml"
        self.load.write_text(
            yaml.safe_dump(
                {
                    "rate": RATE_PER_S,
                    "prompt_tokens": {"min": 8, "max": 48},
                    "output_tokens": {"min": 8, "max": 24},
                    "vocabulary": 200,
                    "for": "25m",
                }
            )
        )

    def write(
        self,
        name: str,
        *,
        command: list[str] | None = None,
        args: dict[str, Any] | None = None,
        torch: str | None = None,
        prometheus: str | None = None,
    ) -> Path:
        runtime = cpu_runtime(self._python, self._model, args=args).as_document()
        runtime["warmup_plan"] = {
            "decode_buckets": [1, 4],
            "mixed_token_buckets": [64],
            "repeat_per_bucket": 2,
        }
        if command is not None:
            runtime["engine"]["venv"] = None
            module = [str(self._python), "-m", "vllm.entrypoints.openai.api_server"]
            runtime["engine"]["command"] = [*command, *module]
        if torch is not None:
            runtime["engine"]["torch"] = torch
        document: dict[str, Any] = {
            "apiVersion": "canaryctl/v1",
            "kind": "RuntimeArtifact",
            "name": name,
            "version": "1",
            "service": "chat",
            "runtime": _without_none(runtime),
            "rollout": {
                "steps": [{"weight": 50, "bake": "10s"}],
                "interval": "500ms",
                "drain": "5s",
                "progress_deadline": "14m",
                "rollback_window": "3s",
                "detectable": "300%",
            },
            "gates": [
                {"name": "tpot_p90", "max_regression": "100%"},
                {"name": "error_rate", "max_ratio": "5%"},
                {"name": "engine_exit", "max": 0},
                {"name": "progress", "max_seconds": "20s"},
            ],
        }
        if prometheus is not None:
            document["rollout"]["metrics"] = {"source": "prometheus", "url": prometheus}
        if torch is not None:
            document["gates"].append({"name": "attestation"})
        if name == "stable":
            document["rollout"]["steps"] = [{"weight": 0, "load": "load.yaml", "requests": 80}]
            document["gates"] = [
                {"name": "ttft_p90", "max_seconds": "5s"},
                {"name": "error_rate", "max_ratio": "5%"},
                {"name": "progress", "max_seconds": "20s"},
            ]
        path = self._folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(document))
        return path


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return value


@pytest.fixture(scope="module")
def factory(
    tmp_path_factory: pytest.TempPathFactory, cpu_vllm_python: Path, tiny_model: Path
) -> Factory:
    return Factory(tmp_path_factory.mktemp("artifacts"), cpu_vllm_python, tiny_model)


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory, factory: Factory) -> Iterator[Cli]:
    cli = Cli(tmp_path_factory.mktemp("cpu-vllm"))
    done = cli.release(factory.write("stable"), timeout_s=300)
    assert done.code == 0, done.err
    assert done.document["kind"] == "first"
    yield cli
    removed = cli.run("remove", "chat")
    assert removed.code == 0, removed.err
    assert cli.left_over() == []


@pytest.fixture
def load(cli: Cli, factory: Factory) -> Iterator[Running]:
    running = cli.start("load", "chat", "--profile", factory.load, "--json")
    yield running
    running.end()


def test_an_engine_that_is_not_the_one_declared_is_refused_before_traffic(
    cli: Cli, factory: Factory, load: Running
) -> None:
    # A shell cannot be asked for versions before the start, as what is baked into an image
    # cannot: the engine itself has to tell.
    behind_a_shell = ["/bin/sh", "-c", 'exec "$@"', "sh"]
    other = factory.write("other", command=behind_a_shell, torch="1.13.1")
    done = cli.release(other, timeout_s=1000)
    assert done.code == 3, done.err
    assert re.match(r"attestation: .*torch_version.*1\.13\.1.*2\.", done.document["reason"])
    assert "progressing" not in [entry["phase"] for entry in done.document["timeline"]]


def _is_core(process: psutil.Process, release: str) -> bool:
    try:
        title = " ".join(process.cmdline() or [process.name()])
        instance = process.environ().get("CANARYCTL_INSTANCE", "")
    except psutil.Error:  # it has ended meanwhile
        return False
    return CORE in title and instance.startswith(release)


def core_under_traffic(cli: Cli) -> psutil.Process:
    """The process that runs the model of the active release's canary, at half of the traffic."""
    with store_of(cli) as store:
        release = eventually("a release", lambda: store.active_release("chat")).id

        def found() -> psutil.Process | None:
            record = store.release(release)
            if record.phase is not Phase.PROGRESSING or record.weight != 50:
                return None
            return next((p for p in psutil.process_iter() if _is_core(p, release)), None)

        core: psutil.Process = eventually("a canary under traffic", found, timeout_s=180)
    time.sleep(2)
    return core


def test_an_engine_whose_core_is_killed_is_rolled_back(
    cli: Cli, factory: Factory, load: Running
) -> None:
    running = cli.start("release", factory.write("killed", args={"seed": 2}), "--json")
    core_under_traffic(cli).kill()
    done = running.wait(1000)
    assert done.code == 3, done.err
    assert done.document["reason"].startswith("engine_exit"), done.document["reason"]
    assert done.document["rollback_target"] == "previous"


def test_an_engine_that_hangs_is_rolled_back(cli: Cli, factory: Factory, load: Running) -> None:
    """Its API server goes on and answers; it generates nothing."""
    running = cli.start("release", factory.write("hangs", args={"seed": 3}), "--json")
    core_under_traffic(cli).suspend()
    done = running.wait(1000)
    assert done.code == 3, done.err
    assert done.document["reason"].startswith("progress"), done.document["reason"]
    assert done.document["rollback_target"] == "previous"


def test_a_slower_engine_is_rolled_back_by_a_latency_gate(
    cli: Cli, factory: Factory, load: Running, cpu_vllm_python: Path
) -> None:
    # By the engine's own interpreter: preflight asks the one that the command names.
    beside = [str(cpu_vllm_python), str(SLOW_CORE), "--after", "30", "--stopped", "0.12"]
    command = [*beside, CORE]
    slower = factory.write("slower", command=command)
    done = cli.release(slower, timeout_s=1000)
    assert done.code == 3, done.err
    assert done.document["reason"].startswith("tpot_p90"), done.document["reason"]


def test_an_equal_engine_is_promoted_judged_through_prometheus(
    cli: Cli, factory: Factory, load: Running, tmp_path: Path
) -> None:
    prometheus = Prometheus(tmp_path, cli.state / "prometheus" / "targets.json")
    prometheus.start()
    good = factory.write("good", args={"enable-prefix-caching": False}, prometheus=prometheus.url)
    done = cli.release(good, timeout_s=1000)
    prometheus.stop()
    assert done.code == 0, done.err
    assert cli.service()["stable"] == "good@1"
    with store_of(cli) as store:
        sources = {row.source for row in store.evidence(done.document["release"])}
    assert sources == {"prometheus"}
