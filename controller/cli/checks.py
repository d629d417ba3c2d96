"""The checks of a document that need the registries: what `validate` and `release` add."""

from canaryctl.controller.artifact.checks import Check
from canaryctl.controller.artifact.registry_checks import (
    engine_check,
    gate_check,
    signals_check,
)
from canaryctl.gates import registry as gates
from canaryctl.runtimes.engines import registry as engines


def document_checks() -> tuple[Check, ...]:
    names = engines.ENGINES.keys()
    return (
        engine_check(names, engines.engine),
        gate_check(gates.check),
        signals_check(names, engines.engine, gates.needs),
    )
