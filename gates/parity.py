"""``output_parity``: whether the canary says what a reference says to the same prompts, greedily.

Measured once, before any traffic; by the ids of tokens, or where an engine tells none by their
texts, which the reason then says. The answers of one engine may differ between batch sizes, so
the reference is measured against itself first, and the canary is judged by what it differs more.
"""

from dataclasses import asdict

from canaryctl.common.metrics import AnySignal
from canaryctl.common.parity import Parity
from canaryctl.gates.base import GateContext, Look, State
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.gates.records import settle, settled
from canaryctl.gates.samples import Missing
from canaryctl.gates.spec import GateSpec
from canaryctl.gates.stats import binomial
from canaryctl.gates.wording import percent

OUTPUT_PARITY = "output_parity"

GROSS = 0.5
"""No harm is claimed where a runtime that answers half of the prompts otherwise would be found,
and in no size of batch as many are beyond the reference's own."""
_POWER = 0.9
BY_TEXT = "tokens were compared by their texts, which several ids may share"


class OutputParityGate:
    """``max_ratio``: the share of prompts that may be answered otherwise, beyond the reference's
    own; ``max_nats``: the mean difference of log-probabilities, beyond the same.

    Fails where the share, of all prompts or of those in batches of one size, is more than
    ``max_ratio`` beyond the largest that the reference may truly have: exact binomial tests of
    both, which share the gate's α. One wrong graph is so found among many right ones.
    """

    hard = False

    def __init__(self, spec: GateSpec, context: GateContext) -> None:
        self.spec = spec
        self._alpha = spec.alpha / max(1, context.gates_total)

    def needs(self) -> frozenset[AnySignal]:
        """None: the controller asks the engines."""
        return frozenset()

    def start(self) -> State:
        return {"failed": None, "looks": 0, "parity": None}

    def look(self, state: State, look: Look) -> tuple[State, GateResult]:
        kept = settled(state)
        if kept is not None:
            return state, kept
        if isinstance(look.parity, Parity):
            state = {**state, "parity": asdict(look.parity)}
        if state["parity"] is None:
            why = look.parity.reason if isinstance(look.parity, Missing) else "not measured yet"
            reason = f"not compared: {why}"
            return state, GateResult(self.spec.name, Outcome.INCONCLUSIVE, reason)
        state = {**state, "looks": state["looks"] + 1}
        result = self._judge(state, Parity.of(state["parity"]))
        return settle(state, result), result

    def _judge(self, state: State, parity: Parity) -> GateResult:
        share, own = parity.canary.share, parity.itself.share
        said = (
            f"{sum(parity.canary.diverged.values())} of {parity.canary.prompts} prompts are "
            f"answered otherwise than by {parity.reference} ({percent(share)}, {percent(own)} by "
            "the reference itself in other batches"
        )
        said += f"{self._allowed()}){_where(parity)}"
        if not parity.token_ids:
            said += f"; {BY_TEXT}"
        standings = []
        if self.spec.max_ratio is not None:
            standings.append(self._by_share(parity, share, own, self.spec.max_ratio))
        if self.spec.max_nats is not None:
            found = _excess_nats(parity)
            if found is None:
                standings.append((Outcome.INCONCLUSIVE, "an engine told no log-probabilities"))
            else:
                said += f"; log-probabilities differ by {found:.2g} nats more than its own"
                within = found <= self.spec.max_nats
                standings.append((Outcome.PASSED if within else Outcome.FAILED, ""))
        outcomes = [outcome for outcome, _ in standings]
        outcome = next(
            (o for o in (Outcome.FAILED, Outcome.INCONCLUSIVE) if o in outcomes), Outcome.PASSED
        )
        notes = "".join(f"; {note}" for _, note in standings if note)
        return GateResult(
            self.spec.name,
            outcome,
            said + notes,
            value=share,
            baseline=own,
            limit=self.spec.max_ratio,
            samples=parity.canary.prompts,
            no_harm=outcome is Outcome.PASSED or self._harmless(parity, share, own, outcomes),
            valid_looks=state["looks"],
            details=asdict(parity),
        )

    def _allowed(self) -> str:
        ratio, nats = self.spec.max_ratio, self.spec.max_nats
        found = "" if ratio is None else f", allowed {percent(ratio)} more"
        return found if nats is None else f"{found}, allowed {nats:g} nats more"

    def _by_share(
        self, parity: Parity, share: float, own: float, most: float
    ) -> tuple[Outcome, str]:
        if self._fails(parity, most):
            return Outcome.FAILED, ""
        if share > own + most or _suspects(parity):
            said = "more than is allowed, and it may be chance; the details say where"
            return Outcome.INCONCLUSIVE, said
        diverged = sum(parity.canary.diverged.values())
        if binomial.upper(diverged, parity.canary.prompts, self.spec.beta) <= own + most:
            return Outcome.PASSED, ""
        return Outcome.INCONCLUSIVE, "within what is allowed, of too few prompts to be proven"

    def _fails(self, parity: Parity, most: float) -> bool:
        canary, itself = parity.canary, parity.itself
        counts = [(canary.of(size), itself.of(size)) for size in canary.asked]
        return sum(canary.diverged.values()) >= self._fails_at(parity, most) or any(
            diverged >= self._least(asked, own, most, tests=len(counts) + 1)
            for (diverged, asked), own in counts
        )

    def _fails_at(self, parity: Parity, most: float) -> int:
        """Diverged prompts of the canary that are too many by chance, over all batches."""
        itself = (sum(parity.itself.diverged.values()), parity.itself.prompts)
        tests = len(parity.canary.asked) + 1
        return self._least(parity.canary.prompts, itself, most, tests=tests)

    def _least(self, asked: int, itself: tuple[int, int], most: float, *, tests: int) -> int:
        alpha = self._alpha / 2 / tests
        truly = binomial.upper(*itself, alpha) if itself[1] else 1.0
        return binomial.least_unlikely(asked, truly + most, alpha)

    def _harmless(self, parity: Parity, share: float, own: float, outcomes: list[Outcome]) -> bool:
        """A share that is allowed, where a gross difference would have been found."""
        most = self.spec.max_ratio
        if most is None or Outcome.FAILED in outcomes or share > own + most or _suspects(parity):
            return False
        if self.spec.max_nats is not None and _excess_nats(parity) is None:
            return False
        found = binomial.tails(parity.canary.prompts, GROSS)
        return found[self._fails_at(parity, most)] >= _POWER


def _suspects(parity: Parity) -> bool:
    """Whether some size of batch has a gross difference."""
    for size in parity.canary.asked:
        (diverged, asked), (own, of) = parity.canary.of(size), parity.itself.of(size)
        if asked and of and diverged / asked - own / of >= GROSS:
            return True
    return False


def _excess_nats(parity: Parity) -> float | None:
    if parity.canary.nats is None or parity.itself.nats is None:
        return None
    return max(0.0, parity.canary.nats - parity.itself.nats)


def _where(parity: Parity) -> str:
    """In which batches, and one place."""
    canary = parity.canary
    sizes = sorted((size for size, count in canary.diverged.items() if count), key=int)
    if not sizes:
        return ""
    told = [f"{canary.of(size)[0]} of {canary.of(size)[1]} in batches of {size}" for size in sizes]
    example = f"; for instance {parity.example}" if parity.example else ""
    return f": {', '.join(told)}{example}"
