"""The verdict: worst wins, and what was not measured is never a pass."""

from collections.abc import Collection, Sequence

from canaryctl.common.errors import UnknownNameError
from canaryctl.gates.outcome import VALID_LOOKS, GateResult, Outcome, Verdict
from canaryctl.gates.registry import HARD_NAMES

NO_HARM, PROVEN = "no_harm", "proven"
PROMOTE_ON = (NO_HARM, PROVEN)

_WORST_FIRST = (Outcome.FAILED, Outcome.ERROR, Outcome.INCONCLUSIVE, Outcome.PASSED)


def fold(
    results: Sequence[GateResult],
    required: Collection[str],
    promote_on: str,
    *,
    valid_looks: int = VALID_LOOKS,
) -> Verdict:
    """``required``: names of the gates that promotion needs; one without a result is missing.

    Promotable: nothing failed, and every required gate has ``valid_looks`` looks with data (a
    hard gate: one) and has passed or, under ``no_harm``, shown no harm.
    """
    if promote_on not in PROMOTE_ON:
        raise UnknownNameError("promotion rule", promote_on, PROMOTE_ON)
    by_name = {result.name: result for result in results}
    missing = [
        f"{name}: {lack}"
        for name in required
        if (lack := _lack(by_name.get(name), promote_on, valid_looks)) is not None
    ]
    if not required:
        missing.append("no gate is required: nothing would be shown by passing them all")
    unjudged = [name for name in required if name not in by_name]
    outcomes = [result.outcome for result in results] + [Outcome.INCONCLUSIVE] * len(unjudged)
    worst = min(outcomes, key=_WORST_FIRST.index, default=Outcome.INCONCLUSIVE)
    told = [f"{r.name}: {r.reason}" for r in results if r.outcome is worst]
    told += [f"{name}: not judged yet" for name in unjudged if worst is Outcome.INCONCLUSIVE]
    return Verdict(
        outcome=worst,
        results=tuple(results),
        reason="all gates passed" if worst is Outcome.PASSED else "; ".join(told) or "no gate",
        promotable=not missing and worst is not Outcome.FAILED,
        missing=tuple(missing),
    )


def _lack(result: GateResult | None, promote_on: str, valid_looks: int) -> str | None:
    """What the gate still owes to promotion, in words; None: nothing."""
    if result is None:
        return "not judged yet"
    looks = 1 if result.name in HARD_NAMES else valid_looks
    harmless = result.no_harm and promote_on == NO_HARM and result.outcome is Outcome.INCONCLUSIVE
    if result.outcome is not Outcome.PASSED and not harmless:
        return f"{result.outcome.value}, {result.reason}"
    if result.valid_looks < looks:
        return f"{result.valid_looks} of {looks} looks with data"
    return None
