"""A quantile against the concurrent baseline without A/A history: (B) with four looks a block.

How strongly observations depend on each other is unknown without a history of equal engines
beside each other, so that bursts are made to count once (block) and PASS is not on offer.
"""

from dataclasses import dataclass

from canaryctl.gates.base import State
from canaryctl.gates.readings import Buckets, align
from canaryctl.gates.rules.standing import SUSPECT, Bars, Standing
from canaryctl.gates.stats import block, edges, mixture, planner
from canaryctl.gates.stats.counts import Counts
from canaryctl.gates.wording import percent, seconds, whole

LOOKS_PER_BLOCK = 4
LEARN_EXCEEDANCES = 3
"""Edges are chosen once the baseline's past is expected to hold so many beyond the quantile."""

NO_HISTORY = "a pass needs a history of equal runtimes beside each other, which there is not"


@dataclass(frozen=True, slots=True)
class BlockShare:
    """``p``: the quantile, 0–1; ``tolerance``, ``margin``: ratios; ``unit``: of observations."""

    p: float
    tolerance: float
    margin: float
    bars: Bars
    unit: str

    def start(self) -> State:
        return {
            "logs": [0.0] * len(block.BETS),
            "starts": [],
            "origin": None,
            "edges": [],
            "history": [],  # of the baseline under the present load
            "question": None,  # [e_i, e_fail or None, effective tolerance or None]
            "open": [0, 0, 0, 0],  # counts of the block that is being filled
            "open_looks": 0,
            "closed": [0, 0, 0, 0],
            "blocks": 0,
            "blocks_needed": None,
        }

    def load_changed(self, state: State) -> State:
        """The block ends here."""
        return self._close(state) if state["open_looks"] else state

    def new_regime(self, state: State) -> State:
        """The baseline's past belongs to another load: where its quantile lies is learnt anew."""
        return {**state, "history": []}

    def look(self, state: State, at: float, canary: Buckets, baseline: Buckets) -> State:
        canary, baseline = align(canary, baseline)
        if canary.finite != state["edges"]:
            state = {**state, "edges": canary.finite, "history": []}
        past = edges.recall(state["history"])
        learned = bool(past) and past[-1] * (1 - self.p) >= LEARN_EXCEEDANCES
        if learned:
            state = self._judge(state, at, canary, baseline, past)
        return {**state, "history": edges.remember(state["history"], at, baseline.cumulative)}

    def standing(self, state: State) -> Standing:
        log_fail = mixture.log_e_late(state["logs"], state["starts"])
        needed = state["blocks_needed"]
        per_block = state["closed"][2] / state["blocks"] if state["blocks"] else 0.0
        requests = None if needed is None else whole(needed * per_block)
        enough = needed is not None and state["blocks"] >= needed
        suspected = self.bars.suspects(log_fail)
        return Standing(
            failed=log_fail >= self.bars.log_fail,
            no_harm=enough and not suspected,
            waits=SUSPECT if enough and suspected else self._waits(state, requests),
            needed=requests,
            details={
                "rule": f"block share, {LOOKS_PER_BLOCK} looks a block",
                "blocks": state["blocks"],
                "blocks_needed": needed,
                "log_e_fail": log_fail,
                "log_fail_at": self.bars.log_fail,
                "edges_compared": state["question"],
                "exceedances": state["closed"][:2],
            },
        )

    def _judge(
        self, state: State, at: float, canary: Buckets, baseline: Buckets, past: list[int]
    ) -> State:
        question = edges.choose(
            canary.edges, past, p=self.p, r=self.tolerance, m=max(self.margin, self.tolerance)
        )
        if question is None:
            lowest = next((e for e in canary.finite if e > 0), None)
            return {**state, "question": [None, lowest, None], "blocks_needed": None}
        low = canary.edges[question.i]
        if question.j_fail is None:
            return {**state, "question": [low, None, None], "blocks_needed": None}
        high = canary.edges[question.j_fail]
        origin = at if state["origin"] is None else state["origin"]
        rate = edges.exceedances(past, question.i) / past[-1]
        slower = edges.share_above(canary.edges, past, high / (1 + self.bars.detectable))
        counts = (
            edges.exceedances(canary.cumulative, question.j_fail),
            edges.exceedances(baseline.cumulative, question.i),
            canary.count,
            baseline.count,
        )
        state = {
            **state,
            "origin": origin,
            "starts": mixture.take_starts(state["starts"], state["logs"], at - origin),
            "question": [low, high, question.effective_tolerance],
            "open": [a + b for a, b in zip(state["open"], counts, strict=True)],
            "open_looks": state["open_looks"] + 1,
        }
        if state["open_looks"] < LOOKS_PER_BLOCK:
            return state
        return self._plan(self._close(state), slower / rate if rate else 1.0)

    @staticmethod
    def _close(state: State) -> State:
        return {
            **state,
            "logs": block.update_fail(state["logs"], Counts(*state["open"])),
            "closed": [a + b for a, b in zip(state["closed"], state["open"], strict=True)],
            "blocks": state["blocks"] + 1,
            "open": [0, 0, 0, 0],
            "open_looks": 0,
        }

    def _plan(self, state: State, rho: float) -> State:
        """Blocks in which a canary slower by ``detectable`` would have failed with 90 % power,
        at the exceedances and shares measured so far. ``rho``: its exceedance rate against the
        baseline's, from the baseline's own histogram."""
        _, k_b, n_c, n_b = state["closed"]
        needed = planner.blocks_needed(
            rho=rho,
            share=n_c / (n_c + n_b) if n_c + n_b else 0.0,
            baseline_events=k_b / state["blocks"],
            bar=self.bars.log_fail,
            z=planner.Z90,
        )
        return {**state, "blocks_needed": needed}

    def _waits(self, state: State, requests: int | None) -> str:
        slower = f"a regression of {percent(self.bars.detectable)}"
        if state["question"] is None:
            least = round(LEARN_EXCEEDANCES / (1 - self.p))
            past = sum(counts[-1] for _, counts in state["history"])
            return (
                f"the baseline has shown {past} of the {least} {self.unit} "
                "from which its quantile is placed"
            )
        low, high, effective = state["question"]
        if low is None:
            where = "all its buckets" if high is None else f"its first edge of {seconds(high)}"
            return (
                f"the baseline's quantile lies below {where}: the engine's buckets are too coarse "
                f"to see a regression of {percent(self.tolerance)}"
            )
        if high is None:
            return (
                f"the engine's buckets have no edge {percent(self.tolerance)} above "
                f"{seconds(low)}, where the baseline's quantile lies: they cannot show a regression"
            )
        if state["blocks_needed"] is None and state["blocks"]:
            return (
                f"between the engine's buckets of {seconds(low)} and {seconds(high)} only "
                f"regressions of more than {percent(effective)} can be told (the effective "
                f"tolerance; asked were {percent(self.tolerance)}), and {slower} (detectable) need "
                "not cross them, however long one waits"
            )
        if requests is None:
            return f"the first of the blocks of {LOOKS_PER_BLOCK} looks is being filled"
        if state["blocks"] >= state["blocks_needed"]:
            return f"{slower} would have been found with 90 % power; {NO_HISTORY}"
        return (
            f"to have found {slower} with 90 % power takes {state['blocks_needed']} blocks of "
            f"{LOOKS_PER_BLOCK} looks, about {requests} canary {self.unit} in all "
            f"(so far {state['blocks']} blocks)"
        )
