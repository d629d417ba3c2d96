"""What this machine has: GPUs, driver, and the engine that is installed.

Nothing is assumed: what cannot be found out is None, and preflight lists it as unknown.
"""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from canaryctl.common.errors import TemporaryError
from canaryctl.runtimes.engines.base import Launch
from canaryctl.runtimes.processes import clean_environment

_MIB = 2**20
_GIB = 2**30
_SMI_QUERY = (
    "--query-gpu=index,name,memory.total,memory.free,memory.used,driver_version",
    "--format=csv,noheader,nounits",
)
_SMI_TIMEOUT_S = 20.0
_PYTHON_TIMEOUT_S = 60.0  # a cold start from a network file system is slow


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device, numbered as the driver does (PCI order). ``used_bytes``: by processes; what the
    driver keeps for itself is neither used nor free. None: the driver does not say."""

    index: int
    name: str
    memory_bytes: int | None
    free_bytes: int | None
    used_bytes: int | None
    driver: str | None


@dataclass(frozen=True, slots=True)
class Machine:
    """``simulated``: the GPUs are an inventory for simulated engines, not devices."""

    gpus: tuple[Gpu, ...]
    simulated: bool = False

    @property
    def driver(self) -> str | None:
        return self.gpus[0].driver if self.gpus else None


def simulated_machine(
    gpus: int, *, name: str = "simulated GPU", memory_gib: float = 80, driver: str | None = None
) -> Machine:
    """An inventory of that many equal, empty GPUs for simulated engines."""
    memory = round(memory_gib * _GIB)
    return Machine(
        tuple(Gpu(index, name, memory, memory, 0, driver) for index in range(gpus)), simulated=True
    )


def inspect_machine() -> Machine:
    """The GPUs that nvidia-smi lists; none where there is no nvidia-smi.

    Raises TemporaryError when nvidia-smi is there and does not answer: a machine whose driver
    is out of order is not a machine without GPUs.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return Machine(())
    try:
        answer = subprocess.run(
            [program, *_SMI_QUERY],
            capture_output=True,
            text=True,
            timeout=_SMI_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TemporaryError(f"nvidia-smi does not answer: {error}") from error
    if answer.returncode != 0:
        said = (answer.stdout + answer.stderr).strip()
        if "No devices were found" in said:
            return Machine(())
        raise TemporaryError(f"nvidia-smi failed with {answer.returncode}: {said[:300]}")
    return Machine(parse_nvidia_smi(answer.stdout))


def parse_nvidia_smi(text: str) -> tuple[Gpu, ...]:
    """GPUs of what ``nvidia-smi`` answers to the query above, as CSV without header and units;
    memory in MiB. TemporaryError for any other text."""
    gpus = []
    for line in text.splitlines():
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 6 or not cells[0].isdigit():
            raise TemporaryError(
                "expected index, name, total, free and used MiB and driver from nvidia-smi, "
                f"found {line[:200]!r}"
            )
        index, name, driver = cells[0], cells[1], cells[5]
        total, free, used = map(_mebibytes, cells[2:5])
        gpus.append(Gpu(int(index), name, total, free, used, _said(driver)))
    return tuple(gpus)


def _mebibytes(cell: str) -> int | None:
    return int(cell) * _MIB if cell.isdigit() else None


def _said(cell: str) -> str | None:
    return None if cell.startswith("[") or not cell else cell  # [N/A], [Not Supported]


@dataclass(frozen=True, slots=True)
class Installation:
    """What would run. ``problem``: why its versions are not known; ``missing``: a program that
    is not there. ``versions``: distribution → version, only of those that are installed."""

    missing: str | None = None
    problem: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


_ASK_VERSIONS = """
import importlib.metadata as metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def inspect_installation(launch: Launch, distributions: Sequence[str]) -> Installation:
    """Ask the interpreter that ``launch`` would use for the versions of ``distributions`` and
    of torch.

    They are read from metadata with the engine's own PYTHONPATH; nothing heavy is imported.
    """
    program = shutil.which(launch.argv[0], path=clean_environment().get("PATH"))
    if program is None:
        return Installation(missing=launch.argv[0])
    interpreter = _interpreter(Path(program))
    if interpreter is None:
        return Installation(problem=f"{program} is no Python program: its versions are not known")
    environment = {**clean_environment(), **launch.env}
    try:
        answer = subprocess.run(
            [*interpreter, "-c", _ASK_VERSIONS, *distributions, "torch"],
            env=environment,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=_PYTHON_TIMEOUT_S,
            check=False,
        )
        if answer.returncode == 0:
            return Installation(versions=json.loads(answer.stdout))
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        return Installation(problem=f"{interpreter[0]} did not tell its versions: {error}")
    said = answer.stderr.strip().splitlines()
    return Installation(
        problem=f"{interpreter[0]} did not tell its versions: {said[-1] if said else 'no output'}"
    )


def _interpreter(program: Path) -> tuple[str, ...] | None:
    """``program`` itself where it is a Python, or the one that its first line names."""
    if program.name.startswith(("python", "pypy")):
        return (str(program),)
    with program.open("rb") as file:
        first = file.readline(512)
    if not first.startswith(b"#!"):
        return None
    words = first[2:].decode(errors="replace").split()
    if words and "python" in words[-1]:
        return tuple(words)
    return None
