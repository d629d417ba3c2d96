"""The vLLM stat-logger plugin: hands what the engine reports to the recorder.

This folder is put on the engine's PYTHONPATH; vLLM finds the plugin by its entry point and
runs it in the API-server process, so what it registers appears on the engine's own /metrics.
It needs nothing beyond what vLLM has, and never raises into the engine: what goes wrong is
counted (``canaryctl_probe_errors_total``) and logged once.
"""

import logging
import os
from typing import Any

import canaryctl_probe_metrics as metrics  # type: ignore[import-not-found,unused-ignore]
from prometheus_client import REGISTRY
from vllm.v1.metrics.loggers import (  # type: ignore[import-not-found,unused-ignore]
    StatLoggerBase,
)
from vllm.version import __version__ as engine_version  # type: ignore[import-not-found,unused-ignore]

logger = logging.getLogger("vllm.canaryctl_probe")

recorder = metrics.Recorder()
REGISTRY.register(recorder)


class CanaryctlProbe(StatLoggerBase):  # type: ignore[misc,unused-ignore]
    """One for each engine that the API server speaks to; all share one recorder."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._config = vllm_config
        self._engine = engine_index
        self._told = False
        self._describe()

    def record(
        self,
        scheduler_stats: Any = None,
        iteration_stats: Any = None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
        **_later_versions: Any,
    ) -> None:
        try:
            recorder.observe(engine_idx, scheduler_stats, iteration_stats)
        except Exception as error:
            self._count(error)

    def log_engine_initialized(self) -> None:
        # By now the engine core has told the API server which limits it really took.
        self._describe()

    def _describe(self) -> None:
        try:
            grid = metrics.read_grid(self._config, engine_version, os.environ)
            recorder.describe_engine(self._engine, grid)
        except Exception as error:
            self._count(error)

    def _count(self, error: Exception) -> None:
        recorder.count_error()
        if not self._told:
            self._told = True
            logger.warning("canaryctl probe: a report could not be read", exc_info=error)
