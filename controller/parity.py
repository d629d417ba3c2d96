"""Measuring ``output_parity``: who is compared with whom, once a release, before any traffic."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from canaryctl.common.parity import Parity
from canaryctl.controller.catalog import Catalog
from canaryctl.controller.model import Release
from canaryctl.controller.plan import Plan
from canaryctl.controller.states import Phase
from canaryctl.controller.view import InstanceView, PoolView
from canaryctl.gates.samples import Missing
from canaryctl.runtimes.parity import ParityRun, Reference, Side

_BEFORE_TRAFFIC = frozenset({Phase.DEPLOYING, Phase.WARMING})

NO_REFERENCE = (
    "a reference runs the same model, revision, tokenizer, quantization and adapters; release this "
    "model with graph.mode NONE first, or leave the gate out"
)


@dataclass(frozen=True, slots=True)
class Standing:
    """``pending``: it is being measured, or its reference is not warm yet. ``found``: the counts,
    or why there are none; None: nothing is known."""

    pending: bool = False
    found: Parity | Missing | None = None


class ParityWatch:
    """The one measurement of the active release. ``address``: where an instance listens.

    The reference is an instance that runs the canary's model, whole and in the same revision: the
    release's eager variant or another instance without graphs where one serves, else a fresh
    baseline, else the stable runtime.
    """

    def __init__(self, catalog: Catalog, address: Callable[[InstanceView], str]) -> None:
        self._catalog, self._address = catalog, address
        self._release: str | None = None
        self._run: ParityRun | None = None
        self._found: Parity | Missing | None = None

    def look(self, release: Release, plan: Plan, pools: Mapping[str, PoolView]) -> Standing:
        """Begin it when it is due, and tell what is known; never waits."""
        if self._release != release.id:
            self._release, self._run, self._found = release.id, None, None
        if self._found is not None:
            return Standing(found=self._found)
        if release.phase not in _BEFORE_TRAFFIC:
            return Standing(found=Missing("it was not measured before the canary had traffic"))
        if self._run is None:
            canary = _serving(pools, release.pool)
            waits = plan.own_baseline and not _serving(pools, plan.baseline_pool)
            if not canary or waits:
                return Standing(pending=True)
            self._begin(release, canary[0], pools)
        outcome = self._run.outcome() if self._run is not None else None
        if outcome is not None:
            self._found = Missing(outcome) if isinstance(outcome, str) else outcome
        return Standing(pending=self._found is None, found=self._found)

    def _begin(self, release: Release, canary: InstanceView, pools: Mapping[str, PoolView]) -> None:
        model = self._catalog.artifact(canary.instance.digest).runtime.model
        others = [
            member
            for pool in (release.eager_pool, release.fresh_pool, release.previous_pool)
            for member in _serving(pools, pool)[:1]
        ]
        same = [
            member
            for member in others
            if self._catalog.artifact(member.instance.digest).runtime.model == model
        ]
        if not same:
            beside = ", ".join(m.instance.id for m in others)
            lacks = f"{beside} runs another model" if beside else "nothing else serves"
            self._found = Missing(f"{lacks}: {NO_REFERENCE}")
            return
        reference = min(same, key=self._uses_graphs)
        form = "with graphs" if self._uses_graphs(reference) else "eager"
        who = f"{reference.instance.id} ({form})"
        self._run = ParityRun(self._canary(canary), Reference(self._side(reference), who))

    def _uses_graphs(self, member: InstanceView) -> bool:
        return self._catalog.artifact(member.instance.digest).runtime.uses_graphs

    def _canary(self, member: InstanceView) -> Side:
        """Larger batches than its largest graph would say nothing of graphs."""
        side = self._side(member)
        runtime = self._catalog.artifact(member.instance.digest).runtime
        grid = self._catalog.engine(member.instance.digest).resolved_grid(runtime)
        speculative = runtime.speculative
        tokens = 1 + (speculative.num_speculative_tokens if speculative else 0)
        return replace(side, most=min(side.most, max(1, max(grid) // tokens))) if grid else side

    def _side(self, member: InstanceView) -> Side:
        runtime = self._catalog.artifact(member.instance.digest).runtime
        engine = self._catalog.engine(member.instance.digest)
        return Side(
            self._address(member),
            engine.model_name(runtime),
            runtime.limits.max_num_seqs,
            runtime.limits.max_model_len,
            engine.tells_token_ids,
        )


def _serving(pools: Mapping[str, PoolView], pool: str | None) -> Sequence[InstanceView]:
    return [] if pool is None else [m for m in pools.get(pool, PoolView()).members if m.serving]
