"""The vLLM stat-logger plugin: hands what the engine reports to the recorder.

vLLM finds it by its entry point and runs it in the API-server process, so what it registers
appears on the engine's own /metrics. It needs nothing beyond what vLLM has, and never raises
into the engine: what goes wrong is counted (``canaryctl_probe_errors_total``) and logged once.
"""

import os
from typing import Any

from prometheus_client import REGISTRY
from vllm.v1.metrics.loggers import (  # type: ignore[import-not-found,unused-ignore]
    StatLoggerBase,
)
from vllm.version import (  # type: ignore[import-not-found,unused-ignore]
    __version__ as engine_version,
)

from .facts import read_facts
from .page import RecorderCollector
from .recorder import Recorder
from .steps import read_grid

recorder = Recorder()
REGISTRY.register(RecorderCollector(recorder))


class CanaryctlProbe(StatLoggerBase):  # type: ignore[misc,unused-ignore]
    """One for each engine that the API server speaks to; all share one recorder."""

    def __init__(self, vllm_config: Any, engine_index: int = 0, **_later_versions: Any) -> None:
        self._config = vllm_config
        self._engine = engine_index
        self._describe_grid()

    def record(
        self,
        scheduler_stats: Any = None,
        iteration_stats: Any = None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
        **_later_versions: Any,
    ) -> None:
        recorder.observe(engine_idx, scheduler_stats, iteration_stats)

    def log_engine_initialized(self) -> None:
        # By now the engine core has told the API server which limits it really took.
        self._describe_grid()
        recorder.describe_facts(
            self._engine, lambda: read_facts(self._config, engine_version, os.environ)
        )

    def _describe_grid(self) -> None:
        recorder.describe_grid(
            self._engine, lambda: read_grid(self._config, engine_version, os.environ)
        )
