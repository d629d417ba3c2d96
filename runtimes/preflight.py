"""Compare a runtime with a machine before anything is started. Pure.

What could not be found out is unknown, never fine.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from canaryctl.common.versions import numbers, padded, satisfies
from canaryctl.runtimes.engines.base import Engine
from canaryctl.runtimes.machine import Gpu, Installation, Machine
from canaryctl.runtimes.memory_budget import Budget
from canaryctl.runtimes.spec import RuntimeSpec
from canaryctl.runtimes.warmup import WarmupPlanError, plan_requests

_GIB = 2**30

# The oldest Linux driver that runs programs of each CUDA major version (NVIDIA, CUDA
# compatibility: minor version compatibility).
_OLDEST_DRIVER = {"11": "450.80.02", "12": "525.60.13", "13": "580.65.06"}


@dataclass(frozen=True, slots=True)
class Preflight:
    """``faults`` forbid a start; ``unknown`` is what nobody could tell."""

    faults: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.faults


@dataclass(frozen=True, slots=True)
class _Fault:
    text: str


@dataclass(frozen=True, slots=True)
class _Unknown:
    text: str


_Finding = _Fault | _Unknown


def preflight(
    spec: RuntimeSpec,
    engine: Engine,
    machine: Machine,
    installation: Installation,
    *,
    distributions: Sequence[str],
    taken_gpus: Collection[int] = (),
    memory: Budget | None = None,
) -> Preflight:
    """Faults and unknowns of running one instance of ``spec`` on ``machine``.

    ``memory``: what is predicted of the memory of one GPU; None: nothing is.

    ``distributions``: the names that the engine's version may be installed under, empty where
    it has none. ``taken_gpus``: indices that other instances hold and do not share.
    """
    findings = [
        *(_Fault(text) for text in engine.check(spec)),
        *_warm_up(spec),
        *_gpus(spec, machine, taken_gpus),
        *_memory_budget(memory),
        *_driver(spec, machine),
        *_installed(spec, installation, distributions),
    ]
    return Preflight(
        faults=tuple(finding.text for finding in findings if isinstance(finding, _Fault)),
        unknown=tuple(finding.text for finding in findings if isinstance(finding, _Unknown)),
    )


def _warm_up(spec: RuntimeSpec) -> Iterator[_Finding]:
    try:
        plan_requests(spec.warmup_plan, spec.limits)
    except WarmupPlanError as error:
        yield _Fault(str(error))


def _memory_budget(memory: Budget | None) -> Iterator[_Finding]:
    if memory is None:
        return
    if memory.fault is not None:
        yield _Fault(memory.fault)
    for what in memory.unknown:
        yield _Unknown(f"memory of {what}")


def _gpus(spec: RuntimeSpec, machine: Machine, taken: Collection[int]) -> Iterator[_Finding]:
    count = spec.gpu.count
    if count == 0:
        return
    model = spec.gpu.model
    alike = [gpu for gpu in machine.gpus if model is None or model.lower() in gpu.name.lower()]
    wanted = f"{count} GPU(s)" + (f" whose name contains {model!r}" if model else "")
    if len(alike) < count:
        there = ", ".join(f"{gpu.index} {gpu.name}" for gpu in machine.gpus) or "none"
        yield _Fault(f"expected {wanted}, found {len(alike)} (the machine has: {there})")
        return
    free = [gpu for gpu in alike if gpu.index not in taken]
    if len(free) < count:
        yield _Fault(
            f"expected {wanted} that no other instance holds, found {len(free)} of {len(alike)}"
        )
        return
    roomy = [gpu for gpu in free if _has_room(gpu, spec.gpu.memory_fraction)]
    unsaid = [gpu for gpu in free if _has_room(gpu, spec.gpu.memory_fraction) is None]
    if len(roomy) >= count:
        return
    if len(roomy) + len(unsaid) >= count:
        yield _Unknown(f"free memory of GPU {', '.join(str(gpu.index) for gpu in unsaid)}")
        return
    have = "; ".join(_memory(gpu) for gpu in free)
    yield _Fault(
        f"expected {count} GPU(s) with {spec.gpu.memory_fraction:.0%} of their memory free "
        f"(memory_fraction), found {len(roomy)}: {have}"
    )


def _has_room(gpu: Gpu, fraction: float) -> bool | None:
    if gpu.memory_bytes is None or gpu.free_bytes is None:
        return None
    return gpu.free_bytes >= fraction * gpu.memory_bytes


def _memory(gpu: Gpu) -> str:
    if gpu.memory_bytes is None or gpu.free_bytes is None:
        return f"GPU {gpu.index} does not say"
    return f"GPU {gpu.index} {gpu.free_bytes / _GIB:.1f} of {gpu.memory_bytes / _GIB:.1f} GiB"


def _driver(spec: RuntimeSpec, machine: Machine) -> Iterator[_Finding]:
    constraint, toolkit = spec.cuda.driver, spec.cuda.toolkit
    if constraint is None and toolkit is None:
        return
    driver = machine.driver
    if constraint is not None:
        try:  # also without a driver: a constraint that cannot be read is a fault anyway
            fits = satisfies(driver or "0", constraint)
        except ValueError as error:
            yield _Fault(f"cuda.driver: {error}")
            return
        if driver is not None and not fits:
            yield _Fault(f"expected a driver {constraint}, found {driver}")
    if driver is None:
        yield _Unknown("the NVIDIA driver's version")
        return
    if toolkit is None:
        return
    oldest = _OLDEST_DRIVER.get(toolkit.split(".")[0])
    if oldest is None:
        yield _Unknown(f"which driver CUDA {toolkit} needs")
    elif not satisfies(driver, f">={oldest}"):
        yield _Fault(f"CUDA {toolkit} needs driver {oldest} or newer, found {driver}")


def _installed(
    spec: RuntimeSpec, installation: Installation, distributions: Sequence[str]
) -> Iterator[_Finding]:
    if installation.missing is not None:
        yield _Fault(f"the program {installation.missing!r} is not there; see runtime.engine")
        return
    if not distributions:
        return
    if installation.problem is not None:
        yield _Unknown(f"the installed {spec.engine.name}: {installation.problem}")
        return
    versions = installation.versions
    name = next((name for name in distributions if name in versions), None)
    if name is None:
        yield _Fault(
            f"expected {spec.engine.name} {spec.engine.version}, "
            f"found none of {', '.join(distributions)} installed for that interpreter"
        )
    elif not _same_version(spec.engine.version, versions[name]):
        yield _Fault(f"expected {spec.engine.name} {spec.engine.version}, found {versions[name]}")
    yield from _torch(spec, versions.get("torch"))


def _torch(spec: RuntimeSpec, installed: str | None) -> Iterator[_Finding]:
    if installed is None:
        yield _Fault("torch is not installed for the engine's interpreter")
        return
    if spec.engine.torch is not None and not _same_version(spec.engine.torch, installed):
        yield _Fault(f"expected torch {spec.engine.torch}, found {installed}")
    build = installed.partition("+")[2]  # cu130, cpu, rocm6.4
    if spec.gpu.count and build == "cpu":
        yield _Fault(f"torch {installed} is a build without CUDA, and gpu.count is not 0")
    toolkit = spec.cuda.toolkit
    if toolkit is None:
        return
    digits = re.fullmatch(r"cu(\d+)(\d)", build)
    if digits is None:
        yield _Unknown(f"the CUDA toolkit that torch {installed} was built with")
    elif padded(numbers(toolkit), 2)[:2] != tuple(int(part) for part in digits.groups()):
        yield _Fault(f"expected CUDA {toolkit}, found torch {installed}")


def _same_version(wanted: str, installed: str) -> bool:
    """A local part (``+cu130``) counts only where the artifact names one."""
    return installed == wanted or ("+" not in wanted and installed.partition("+")[0] == wanted)
