"""``attestation``: what an artifact declares of its runtime against what the engine attests.

Judged before any traffic, exact, and without α. A mismatch fails and names both sides; what is
declared and not attested is inconclusive; what the artifact leaves open is told in the details as
it was resolved. Names are those of the labels that engines attest themselves by. What an engine's
page says it was configured to, its log may say that it could not do: the log decides.
"""

from collections.abc import Callable, Mapping

from canaryctl.common.metrics import AnySignal, Signal
from canaryctl.common.versions import satisfies
from canaryctl.gates.base import GateContext, Look, State
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.readings import each_series, told
from canaryctl.gates.records import settle, settled, undecided
from canaryctl.gates.samples import Missing, Series
from canaryctl.gates.spec import GateSpec
from canaryctl.gates.wording import plural

ATTESTATION = "attestation"

Fault = Callable[[str, str], str | None]
"""(declared, attested) → what differs, in words, after both sides; None: they agree."""

_GRID = {
    "mode": "graph_mode",
    "sizes": "graph_sizes",
    "requested": "requested_sizes",
    "engine_version": "engine_version",
}
"""Labels of the older grid_info → the names that attestation has for them."""


def _same(declared: str, attested: str) -> str | None:
    return None if declared == attested else ""


def _same_version(declared: str, attested: str) -> str | None:
    """2.11.0 is attested as 2.11.0+cu130: a local part counts where it is declared."""
    return _same(declared, attested if "+" in declared else attested.partition("+")[0])


def _same_series(declared: str, attested: str) -> str | None:
    """13.0 is attested as 13.0 or as 13.0.1."""
    return _same(declared, ".".join(attested.split(".")[: len(declared.split("."))]))


def _constraint(declared: str, attested: str) -> str | None:
    try:
        return None if satisfies(attested, declared) else ""
    except ValueError as error:
        return f" ({error})"


def _part_of_each(declared: str, attested: str) -> str | None:
    """H200 is attested as NVIDIA H200, or as several with commas."""
    parts = attested.casefold().split(",")
    return None if all(declared.casefold() in part for part in parts) else ""


def _same_sizes(declared: str, attested: str) -> str | None:
    asked, there = _sizes(declared), _sizes(attested)
    differences = [
        f"{', '.join(sorted(names, key=_number))} {what}"
        for names, what in ((asked - there, "missing"), (there - asked, "not declared"))
        if names
    ]
    return f" ({'; '.join(differences)})" if differences else None


FAULTS: Mapping[str, Fault] = {
    "engine_version": _same_version,
    "torch_version": _same_version,
    "cuda_version": _same_series,
    "driver_version": _constraint,
    "gpu_model": _part_of_each,
    "graph_sizes": _same_sizes,
    "requested_sizes": _same_sizes,
}
"""How a name is compared, where not letter by letter."""


class AttestationGate:
    """Every instance of the canary, by every name that is declared."""

    hard = False

    def __init__(self, spec: GateSpec, context: GateContext) -> None:
        del context  # nothing is compared with a baseline
        self.spec = spec

    def needs(self) -> frozenset[AnySignal]:
        return frozenset({Signal.ATTESTATION, Signal.GRID})

    def start(self) -> State:
        return {"failed": None, "looks": 0}

    def look(self, state: State, look: Look) -> tuple[State, GateResult]:
        kept = settled(state)
        if kept is not None:
            return state, kept
        attested = _attested(look)
        if isinstance(attested, Missing):
            return state, undecided(self.spec.name, state, f"not attested: {attested.reason}")
        state = {**state, "looks": state["looks"] + 1}
        said = {instance: start.resolved_by for instance, start in look.start.items()}
        result = self._judge(state, look.declared or {}, attested, said)
        return settle(state, result), result

    def _judge(
        self,
        state: State,
        declared: Mapping[str, str],
        attested: Mapping[str, Mapping[str, str]],
        said: Mapping[str, Mapping[str, str]],
    ) -> GateResult:
        details = {
            "declared": dict(declared),
            "attested": {name: dict(labels) for name, labels in attested.items()},
            "left_open": {
                name: value
                for labels in attested.values()
                for name, value in labels.items()
                if name not in declared
            },
        }
        mismatches = [
            f"{instance}: {name}: declared {wanted}, attested {labels[name]}{fault}"
            f"{_by_log(said.get(instance, {}).get(name))}"
            for instance, labels in attested.items()
            for name, wanted in declared.items()
            if name in labels
            and (fault := FAULTS.get(name, _same)(wanted, labels[name])) is not None
        ]
        if mismatches:
            return GateResult(
                self.spec.name,
                Outcome.FAILED,
                f"the runtime is not the one declared: {'; '.join(mismatches)}",
                value=len(mismatches),
                limit=0,
                samples=len(attested),
                valid_looks=state["looks"],
                details=details,
            )
        silent = sorted(
            {name for labels in attested.values() for name in declared if name not in labels}
        )
        if silent:
            why = f"declared and not attested: {', '.join(silent)}"
            return undecided(self.spec.name, state, why, details)
        if not declared:
            why = "the artifact declares nothing to attest"
            return undecided(self.spec.name, state, why, details)
        return GateResult(
            self.spec.name,
            Outcome.PASSED,
            f"attested as declared by {plural(len(attested), 'instance')}: "
            f"{', '.join(sorted(declared))}",
            value=0,
            limit=0,
            samples=len(attested),
            no_harm=True,
            valid_looks=state["looks"],
            details=details,
        )


def _by_log(words: str | None) -> str:
    return "" if words is None else f" (by its log: {words})"


def _attested(look: Look) -> dict[str, dict[str, str]] | Missing:
    """Instance → what it attests, and what its log says that it made of it; Missing if one of them
    attests nothing at all."""
    arm = look.canary
    grids = {name: value for name, value in told(arm, Signal.GRID) if isinstance(value, Series)}
    found: dict[str, dict[str, str]] = {}
    for instance, value in told(arm, Signal.ATTESTATION):
        labels = {
            _GRID[name]: text
            for series in (grids[instance].values if instance in grids else ())
            for name, text in series
            if name in _GRID
        }
        if isinstance(value, Series):
            labels |= {name: text for series in value.values for name, text in series}
        if not labels:
            missing = each_series(arm, Signal.ATTESTATION, "canary")
            return missing if isinstance(missing, Missing) else Missing(f"{instance} says nothing")
        start = look.start.get(instance)
        found[instance] = labels if start is None else {**labels, **start.resolved}
    return found or Missing("no instance of the canary was read")


def _sizes(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",") if part.strip() not in ("", "none"))


def _number(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdigit() else (0, text)
