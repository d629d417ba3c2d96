"""The checks of a document that need the registries: what `validate` and `release` add."""

from canaryctl.controller.artifact.checks import Check
from canaryctl.controller.artifact.engine_check import engine_check
from canaryctl.runtimes.engines.registry import ENGINES, engine


def document_checks() -> tuple[Check, ...]:
    return (engine_check(ENGINES.keys(), engine),)
