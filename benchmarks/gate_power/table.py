"""The results as docs/benchmarks/gates.md shows them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.gate_power import bars
from benchmarks.gate_power.bars import number, share
from benchmarks.gate_power.binomial import Median, Rate
from benchmarks.gate_power.campaign import Found
from benchmarks.gate_power.counting import Counted
from benchmarks.gate_power.experiments import AT_TOLERANCE, EQUAL, IID, ONE_HOUR, TOKENS
from benchmarks.gate_power.forms import FORMS
from benchmarks.gate_power.judges import JUDGES
from benchmarks.gate_power.promotions import Releases
from benchmarks.gate_power.queues import Q60, QUEUES

OURS = {"p99": "**this gate, p99**", "multi": "**this gate, four quantiles**"}
COMPARED = (EQUAL, AT_TOLERANCE, "+20 %", "+50 %", "+50 % of the tail", "+100 %")
COMPARED_QUEUE = (EQUAL, AT_TOLERANCE, "+50 %", "+100 %")
TEXT = """# Gates: how often they are wrong, and how soon they are right

    python -m benchmarks.gate_power --repetitions {errors} --write docs/benchmarks/gates.md

Simulated releases of one hour: 240 looks of 15 s, ten engines of which one is the canary, two
requests a second each, α = 1 %, β = 5 %, tolerance 10 %, margin 33 %, histograms with edges 4.9 %
apart. `p99` is the gate `ttft_p99`, `multi` the gate `ttft` with its four quantiles. The rates come
from an accelerated copy of `canaryctl.gates`; the releases under "Promotion" were judged by the
gates themselves, beside the copy: of {compared} looks compared there, {unequal} had another log
e-value. Seed {seed}; it took {seconds} on {cores} cores{load}.

**Worlds.** *iid*: latencies drawn independently (93 % log-normal around 180 ms, 6 % around 500 ms,
1 % around 1.2 s), (A) with φ = 1 known (a pass takes 1.25 all the same); *own history*: φ from two
hours of ten equal engines, drawn anew for every release, as everywhere below. *Queues*: first come
first served, Poisson arrivals, service 20 ms + log-normal (σ 0.9): Q60 one server at load 0.6, Q80
at 0.8, Qk eight servers at 0.6, Qd Q60 under a load that drifts for all engines alike. A regression
of a queue slows the service so that the long-run p99 grows by it. *tokens*: gaps between tokens,
every step giving one to each of 48 to 112 sequences. *No history*: (B) with blocks of four looks;
*φ = 1*: (A) as if requests were independent, which they are not.

Each rate or median stands with its standard error and its one-sided 95 % bound (exact binomial,
order statistics). A bar is met when the bound is within it, missed when the opposite bound is
beyond it, and open between the two.

*Why two hours of history*: in an hour in which the load happened to drift little, slow requests
come in short bursts. L* is then one or two looks, too short for an hour in which it drifts more,
and from such histories nearly all false failures of Qd would come. Two hours seldom miss both; with
one, a block has four looks at least, which costs requests.
"""


@dataclass(frozen=True, slots=True)
class Report:
    """All that was measured. ``load``: of the machine, as a clause."""

    found: Mapping[tuple[str, str], Found]
    promoted: Mapping[tuple[str, str], Releases]
    errors: Mapping[str, Counted]
    misses: Mapping[str, Counted]
    repetitions: int
    seed: int
    seconds: float
    cores: int
    load: str

    def markdown(self) -> str:
        compared = [r for releases in self.promoted.values() for r in releases.each]
        text = TEXT.format(
            errors=self.repetitions,
            seed=self.seed,
            seconds=f"{self.seconds / 60:.0f} minutes",
            cores=self.cores,
            load=self.load,
            compared=f"{sum(r.compared for r in compared):,}",
            unequal=sum(r.unequal for r in compared) or "none",
        )
        parts = [
            text,
            "## Bars\n",
            table(
                ("bar", "what", "form", "measured", "± s.e.", "95 % bound", "bar at", ""),
                (row.cells() for row in bars.rows(self.found)),
            ),
            "## Beside other judges\n",
            "Failed releases, and the median of canary requests until then.\n",
            self._beside(IID, COMPARED),
            f"In {Q60.name}:\n",
            self._beside(Q60.name, COMPARED_QUEUE),
            "## Queues and tokens\n",
            self._worlds(),
            "## Promotion\n",
            (
                "As soon as the rule holds and before a failure; p99, each release with a history "
                "of its own. `no_harm`: +50 % would have been found with 90 % power.\n"
            ),
            self._promotion(),
            "## Counts\n",
            self._counts(),
        ]
        return "\n".join(parts)

    def _beside(self, world: str, cases: Sequence[str]) -> str:
        lines = []
        for judge in JUDGES:
            times = [self.found[world, case].others[judge] for case in cases]
            lines.append((judge, *(_failed(each) for each in times)))
        for form, name in OURS.items():
            decisions = [self.found[world, case].decisions[form] for case in cases]
            lines.append((name, *(_failed([d.failed_after for d in each]) for each in decisions)))
        return table(("judge", *cases), lines)

    def _worlds(self) -> str:
        lines = []
        cases = (EQUAL, AT_TOLERANCE, "+50 %", "+100 %")
        more = ("equal, φ = 1", *cases, "equal, no history", "+10 %, no history")
        for queues, asked in ((QUEUES, more), (ONE_HOUR, cases)):
            for queue in queues:
                lines += [self._world(queue.name, form, case) for form in FORMS for case in asked]
        for form in FORMS:
            lines += [self._world(TOKENS, form, case) for case in (EQUAL, AT_TOLERANCE, "+20 %")]
        head = ("world", "form", "case", "failed", "after", "passed", "after", "φ of the p99")
        return table(head, lines)

    def _world(self, world: str, form: str, case: str) -> tuple[str, ...]:
        found = self.found[world, case]
        phis = Median(found.phis)
        return (
            world,
            form,
            case,
            _rate(found.failed(form)),
            number(found.failed_after(form).value),
            _rate(found.passed(form)),
            number(found.passed_after(form).value),
            f"{phis.value:.3g}",
        )

    def _promotion(self) -> str:
        lines = []
        for (world, case), releases in self.promoted.items():
            ends = ("failed_after", "harmless_after", "passed_after")
            cells = [
                cell
                for end in ends
                for cell in (_rate(releases.rate(end)), number(releases.median(end).value))
            ]
            lines.append((world, case, *cells))
        head = ("world", "case", "failed", "after", "`no_harm`", "after", "`proven`", "after")
        return table(head, lines)

    def _counts(self) -> str:
        lines = [
            (f"errors, {name}", _rate(each.failed), number(each.failed_median.value), "–")
            for name, each in self.errors.items()
        ] + [
            (
                f"misses of at most 1 %, {name}",
                _rate(each.failed),
                number(each.failed_median.value),
                number(each.passed_median.value),
            )
            for name, each in self.misses.items()
        ]
        return table(("case", "failed", "after", "passed after"), lines)


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def _rate(rate: Rate) -> str:
    return f"{100 * rate.value:.1f} ± {100 * rate.error:.1f} %"


def _failed(times: Sequence[float]) -> str:
    rate = Rate(sum(t < float("inf") for t in times), len(times))
    median = Median(times).value
    after = f" @ {number(median)}" if median < float("inf") else ""
    return f"{share(rate.value)}{after}"
