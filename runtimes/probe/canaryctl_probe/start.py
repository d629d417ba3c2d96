"""A vLLM general plugin: has the core say exactly what it captured, and what that took.

The seconds and the memory of a capture are known in the engine core's own processes alone, and its
log line rounds them to whole seconds and hundredths of a GiB: for a grid of nine sizes that is a
third of the one and a twelfth of the other. The mode, too, is settled there, once the attention
backend has said what it can do, and the API server is not told. The same line says all of it.
"""

import logging
import sys
from typing import Any

from .unknown import UnknownError

CAPTURED = "Graph capturing finished"
RUNNERS = ("vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner")
"""The loggers of either model runner."""
_CAPTURE = "capture_model"  # the method of either that captures, and then says so


class InFull(logging.Filter):
    """Lets every record pass; that of the capture with milliseconds, KiB, mode and sizes."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, str) and record.msg.startswith(CAPTURED):
            full = record.msg.replace("%.0f", "%.3f").replace("%.2f", "%.6f")
            graphs = " ".join(_captured().replace("%", "").split())  # it is formatted, as one line
            record.msg = f"{full}, as {graphs}"
        return True


def say_in_full() -> None:
    """The plugin. vLLM calls it in each of its processes, and maybe twice in one."""
    for name in RUNNERS:
        logger = logging.getLogger(name)
        if not any(isinstance(known, InFull) for known in logger.filters):
            logger.addFilter(InFull())


def _captured() -> str:
    """``FULL_AND_PIECEWISE of 1,2,4``, of the runner that is saying so; else why it is unknown.
    Never raises: the engine starts here."""
    try:
        mode, graphs = _graphs(_runner())
        sizes = sorted({int(graph.num_tokens) for of_mode in graphs.values() for graph in of_mode})
        return f"{mode.name} of {','.join(map(str, sizes)) or 'none'}"
    except Exception as error:
        return f"the probe cannot read: {type(error).__name__}: {error}"[:200]


def _runner() -> Any:
    """Whose method is logging: nothing else of the engine leads to it."""
    frame = sys._getframe()
    while frame.f_code.co_name != _CAPTURE:
        if frame.f_back is None:
            raise UnknownError(f"{_CAPTURE} is not what logs it")
        frame = frame.f_back
    return frame.f_locals["self"]


def _graphs(runner: Any) -> tuple[Any, Any]:
    """The mode that the worker resolved, and by mode what it captures: all of it, or it fails."""
    dispatcher = getattr(runner, "cudagraph_dispatcher", None)
    if dispatcher is not None:
        return dispatcher.cudagraph_mode, dispatcher.cudagraph_keys
    manager = runner.cudagraph_manager  # Model Runner V2
    return manager.cudagraph_mode, manager._capture_descs
