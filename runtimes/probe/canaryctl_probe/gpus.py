"""The GPUs and the driver, by NVML: asking it creates no CUDA context in the API server."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .unknown import UnknownError

BINDINGS = ("vllm.third_party.pynvml", "pynvml")
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Gpus:
    """Those that the engine uses; bytes are of all of them together and of every process there."""

    driver: str
    models: tuple[str, ...]
    used_bytes: int
    total_bytes: int


def read_gpus(environment: Mapping[str, str], wanted: int) -> Gpus:
    """The first ``wanted`` visible ones. UnknownError where there is no NVML or no such GPU."""
    nvml = _bindings()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise UnknownError(f"there is no NVIDIA driver to ask: {error}") from error
    try:
        handles = _handles(nvml, environment.get(VISIBLE), wanted)
        memory = [nvml.nvmlDeviceGetMemoryInfo(handle) for handle in handles]
        return Gpus(
            driver=_text(nvml.nvmlSystemGetDriverVersion()),
            models=tuple(_text(nvml.nvmlDeviceGetName(handle)) for handle in handles),
            used_bytes=sum(int(m.used) for m in memory),
            total_bytes=sum(int(m.total) for m in memory),
        )
    except nvml.NVMLError as error:
        raise UnknownError(f"NVML does not say: {error}") from error
    finally:
        nvml.nvmlShutdown()


def _bindings() -> Any:
    for name in BINDINGS:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise UnknownError("the engine's environment has no bindings to NVML")


def _handles(nvml: Any, visible: str | None, wanted: int) -> list[Any]:
    """By ``CUDA_VISIBLE_DEVICES``: numbers, or the names of a GPU or of a part of one."""
    if visible is None:
        named = [str(number) for number in range(nvml.nvmlDeviceGetCount())]
    else:
        named = [name.strip() for name in visible.split(",") if name.strip()]
    if len(named) < wanted:
        raise UnknownError(f"the engine has {wanted} GPUs and {len(named)} are visible here")
    return [
        nvml.nvmlDeviceGetHandleByIndex(int(name))
        if name.isdigit()
        else nvml.nvmlDeviceGetHandleByUUID(name.encode())
        for name in named[:wanted]
    ]


def _text(value: str | bytes) -> str:
    """Older bindings answer bytes."""
    return value.decode() if isinstance(value, bytes) else value
