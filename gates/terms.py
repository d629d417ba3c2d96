"""The terms on which a release is judged, fixed before its first look: which gates, what is
shared among them, and what promotion asks for. With the looks they say every verdict again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from canaryctl.gates.base import Gate, GateContext
from canaryctl.gates.history import from_document
from canaryctl.gates.registry import build
from canaryctl.gates.spec import GateSpec


@dataclass(frozen=True, slots=True)
class GateTerms:
    """``promote_on``: one of :data:`canaryctl.gates.fold.PROMOTE_ON`."""

    specs: tuple[GateSpec, ...]
    context: GateContext
    promote_on: str

    def gates(self) -> dict[str, Gate]:
        """By name, in the order of the specs."""
        return {spec.name: build(spec, self.context) for spec in self.specs}


def terms_document(terms: GateTerms) -> dict[str, Any]:
    """JSON types only; :func:`terms_of` gives back equal terms."""
    context = {f.name: getattr(terms.context, f.name) for f in fields(GateContext)}
    known = terms.context.history
    return {
        "gates": [spec.model_dump(mode="json", exclude_unset=True) for spec in terms.specs],
        "context": {**context, "history": None if known is None else known.as_document()},
        "promote_on": terms.promote_on,
    }


def terms_of(document: Mapping[str, Any]) -> GateTerms:
    """The terms of a :func:`terms_document`."""
    known = document["context"]["history"]
    learned = None if known is None else from_document(known)
    return GateTerms(
        specs=tuple(GateSpec.model_validate(spec) for spec in document["gates"]),
        context=GateContext(**{**document["context"], "history": learned}),
        promote_on=document["promote_on"],
    )
