"""Whether runtimes with graphs say what the eager one does, as ``output_parity`` judges it."""

from collections.abc import Mapping
from typing import Any

from benchmarks._h200_buckets import table
from canaryctl.common.parity import Parity
from canaryctl.gates import registry
from canaryctl.gates.base import GateContext, Look
from canaryctl.gates.parity import OUTPUT_PARITY
from canaryctl.gates.samples import ArmWindow
from canaryctl.gates.spec import GateSpec

MAX_RATIO = "5%"


def judged(found: Parity) -> str:
    """The outcome of the gate that allows ``MAX_RATIO`` more."""
    spec = GateSpec.model_validate({"name": OUTPUT_PARITY, "max_ratio": MAX_RATIO})
    gate = registry.build(spec, GateContext(1, 0.5, 15.0, 0.1))
    _, result = gate.look(gate.start(), Look(0.0, ArmWindow((), 1), None, parity=found))
    return result.outcome.value


def parity_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each runtime, of :class:`Parity` documents."""
    rows = []
    for name, document in found.items():
        parity = Parity.of(document)
        rows.append(
            (
                name,
                f"{parity.canary.prompts}",
                f"{sum(parity.canary.diverged.values())}",
                f"{sum(parity.itself.diverged.values())}",
                _nats(parity.canary.nats),
                _nats(parity.itself.nats),
                judged(parity),
            )
        )
    head = ("runtime", "prompts", "answered otherwise", "by eager itself", "nats", "its own")
    return table((*head, f"`output_parity`, {MAX_RATIO}"), rows)


def _nats(nats: float | None) -> str:
    return "not told" if nats is None else f"{nats:.2g}"
