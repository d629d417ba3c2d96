"""A vLLM general plugin: has the core say exactly what its graphs took.

The seconds and the memory of a capture are known in the engine core's own process alone, and its
log line rounds them to whole seconds and hundredths of a GiB: for a grid of nine sizes that is a
third of the one and a twelfth of the other. The same line says both in full.
"""

import logging

CAPTURED = "Graph capturing finished"
RUNNERS = ("vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner")
"""The loggers of either model runner."""


class InFull(logging.Filter):
    """Lets every record pass; that of the capture with milliseconds and KiB."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, str) and record.msg.startswith(CAPTURED):
            record.msg = record.msg.replace("%.0f", "%.3f").replace("%.2f", "%.6f")
        return True


def say_in_full() -> None:
    """The plugin. vLLM calls it in each of its processes, and maybe twice in one."""
    for name in RUNNERS:
        logger = logging.getLogger(name)
        if not any(isinstance(known, InFull) for known in logger.filters):
            logger.addFilter(InFull())
