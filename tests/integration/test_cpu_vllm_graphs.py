"""What vLLM's own classes decide of graphs, as its log then says it: no GPU is there to capture."""

import os
import subprocess
from pathlib import Path

import pytest

from canaryctl.runtimes.engines.vllm import PROBE
from canaryctl.runtimes.engines.vllm_log import read_vllm_log

pytestmark = pytest.mark.vllm

# The worker's part, by what it is made of there: its configuration resolves the mode with what the
# attention backend can do, its dispatcher holds what is captured, its logger says that it was.
WORKER = """
from types import SimpleNamespace
from vllm.config import CompilationConfig, CompilationMode, CUDAGraphMode, LoggingConfig
from vllm.logger import configure_logging, init_logger
from vllm.plugins import load_general_plugins
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

configure_logging(LoggingConfig())
load_general_plugins()
logger = init_logger("vllm.v1.worker.gpu_model_runner")


class Runner:
    def __init__(self, mode, support):
        config = CompilationConfig(
            mode=CompilationMode.VLLM_COMPILE,
            cudagraph_mode=mode,
            cudagraph_capture_sizes=[1, 2, 4, 8],
            max_cudagraph_capture_size=8,
        )
        config.set_splitting_ops_for_v1("")
        self.cudagraph_dispatcher = CudagraphDispatcher(
            SimpleNamespace(
                compilation_config=config,
                num_speculative_tokens=0,
                lora_config=None,
                scheduler_config=SimpleNamespace(max_num_seqs=4),
            )
        )
        resolved = config.resolve_cudagraph_mode_and_sizes(support, "SomeBackend", 1)
        self.cudagraph_dispatcher.initialize_cudagraph_keys(resolved, 1)

    def capture_model(self):
        logger.info_once("Graph capturing finished in %.0f secs, took %.2f GiB", 2.1213, 0.15820)


Runner(CUDAGraphMode.{mode}, AttentionCGSupport.{support}).capture_model()
"""


@pytest.mark.parametrize(
    ("mode", "support", "resolved"),
    [
        ("FULL_AND_PIECEWISE", "ALWAYS", "FULL_AND_PIECEWISE"),
        ("FULL_AND_PIECEWISE", "NEVER", "PIECEWISE"),
    ],
)
def test_the_mode_that_a_worker_resolves_is_read_from_its_log(
    cpu_vllm_python: Path, mode: str, support: str, resolved: str
) -> None:
    worker = WORKER.replace("{mode}", mode).replace("{support}", support)
    environment = {**os.environ, "PYTHONPATH": str(PROBE), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [cpu_vllm_python, "-c", worker],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    facts = read_vllm_log(ended.stdout.splitlines())
    assert facts.resolved == {"graph_mode": resolved, "graph_sizes": "1,2,4,8"}, ended.stdout
    assert facts.stage_seconds["capture"] == pytest.approx(2.121)
    words = facts.resolved_by["graph_mode"]
    if mode == resolved:
        assert words.startswith("Graph capturing finished in 2.121 secs")
    else:
        assert words.startswith(f"CUDAGraphMode.{mode} is not supported with SomeBackend backend")
        assert any(words in warning for warning in facts.warnings)
