"""Gates judged on windows made by hand."""

from collections.abc import Mapping
from typing import Any

from canaryctl.common.metrics import AnySignal
from canaryctl.gates import registry
from canaryctl.gates.base import GateContext, Look
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.samples import ArmWindow, Delta, Value
from canaryctl.gates.spec import GateSpec

Values = dict[AnySignal, Value]


def spec(name: str, **limits: Any) -> GateSpec:
    return GateSpec.model_validate({"name": name, **limits})


def context(**changes: Any) -> GateContext:
    given: dict[str, Any] = {
        "gates_total": 4,
        "detectable": 1.0,
        "interval_s": 2.0,
        "canary_share": 0.5,
    }
    return GateContext(**{**given, **changes})


def arm(*instances: Mapping[AnySignal, Value], span_s: float = 2.0) -> ArmWindow:
    return ArmWindow(
        tuple(Delta(f"i{k}", span_s, values) for k, values in enumerate(instances)),
        len(instances),
    )


def judge(
    gate_spec: GateSpec,
    looks: int,
    canary: ArmWindow,
    baseline: ArmWindow | None = None,
    **more: Any,
) -> tuple[int, GateResult]:
    """(looks made, last result), ending at the first failure."""
    assert registry.check([gate_spec]) == []
    gate = registry.build(gate_spec, context())
    state = gate.start()
    for k in range(looks):
        state, result = gate.look(state, Look(2.0 * k, canary, baseline, **more))
        if result.outcome is Outcome.FAILED:
            break
    return k + 1, result
