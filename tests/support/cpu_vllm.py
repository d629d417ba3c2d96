"""A real vLLM on the CPU, for tests: where it is, and a runtime that it starts quickly.

``tools/install-cpu-vllm`` installs it; CANARYCTL_CPU_VLLM names another place.
"""

import os
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from canaryctl.runtimes.spec import RuntimeSpec

ROOT = Path(__file__).resolve().parents[2]
VERSION = "0.32.0"
INSTALL = "tools/install-cpu-vllm"
CORE = "VLLM::EngineCore"  # how the process that runs the model is named; a child of the API server


def venv() -> Path:
    return Path(os.environ.get("CANARYCTL_CPU_VLLM", ROOT / ".cache" / "cpu-vllm"))


@pytest.fixture(scope="session")
def cpu_vllm_python() -> Path:
    """The python that has CPU vLLM. Missing: a skip for a developer, a failure in CI."""
    python = venv() / "bin" / "python"
    if not (venv() / ".complete").exists():
        message = f"no CPU vLLM in {venv()}: run {INSTALL} (once, 3.4 GB, about two minutes)"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return python


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory of two layers, without weights."""
    directory = tmp_path_factory.mktemp("models") / "tiny"
    tool = runpy.run_path(str(ROOT / "tools" / "random_model.py"))
    tool["write_model"](directory, tiny=True)
    return directory


def cpu_runtime(
    python: Path,
    model: Path,
    *,
    env: Mapping[str, str] | None = None,
    args: Mapping[str, Any] | None = None,
) -> RuntimeSpec:
    """A runtime of one thread that is ready in half a minute and takes about 3 GB."""
    document = {
        "engine": {
            "name": "vllm",
            "version": VERSION,
            "venv": str(python.parent.parent),
            "args": {"load-format": "dummy", "served-model-name": "chat", **(args or {})},
            "env": {
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "OMP_NUM_THREADS": "1",
                # Else each engine binds itself to the first CPU, and two share it.
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "VLLM_NO_USAGE_STATS": "1",
                **(env or {}),
            },
        },
        "gpu": {"count": 0},
        "model": {"id": str(model)},
        "graph": {"mode": "NONE"},
        "limits": {"max_num_seqs": 16, "max_num_batched_tokens": 512, "max_model_len": 512},
    }
    return RuntimeSpec.model_validate(document)
