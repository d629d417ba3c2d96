"""The checks of a document that need the registries: what `validate` and `release` add."""

from canaryctl.controller.artifact.checks import Check
from canaryctl.controller.artifact.registry_checks import engine_check, gate_check
from canaryctl.gates import registry as gates
from canaryctl.runtimes.engines import registry as engines


def document_checks() -> tuple[Check, ...]:
    return (engine_check(engines.ENGINES.keys(), engines.engine), gate_check(gates.check))
