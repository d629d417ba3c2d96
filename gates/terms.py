"""The terms on which a release is judged, fixed before its first look: which gates, what is
shared among them, and what promotion asks for. With the looks they say every verdict again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from canaryctl.common.metrics import Signal
from canaryctl.gates.base import Gate, GateContext
from canaryctl.gates.history import AaHistory, Dependence
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
        "context": {**context, "history": None if known is None else _history_document(known)},
        "promote_on": terms.promote_on,
    }


def terms_of(document: Mapping[str, Any]) -> GateTerms:
    """The terms of a :func:`terms_document`."""
    known = document["context"]["history"]
    learned = None if known is None else _history_of(known)
    return GateTerms(
        specs=tuple(GateSpec.model_validate(spec) for spec in document["gates"]),
        context=GateContext(**{**document["context"], "history": learned}),
        promote_on=document["promote_on"],
    )


def _history_document(history: AaHistory) -> dict[str, Any]:
    found = [
        {"signal": signal.value, "p": p, **{f.name: getattr(d, f.name) for f in fields(Dependence)}}
        for (signal, p), d in history.dependences.items()
    ]
    return {"look_s": history.look_s, "span_s": history.span_s, "dependences": found}


def _history_of(document: Mapping[str, Any]) -> AaHistory:
    found = {}
    for item in document["dependences"]:
        values = {name: value for name, value in item.items() if name not in ("signal", "p")}
        found[Signal(item["signal"]), item["p"]] = Dependence(**values)
    return AaHistory(**{**document, "dependences": found})
