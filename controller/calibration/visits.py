"""Batches of sequences that decode together on one engine, timed by what the engine counted."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from canaryctl.common.errors import PermanentError
from canaryctl.common.metrics import Signal
from canaryctl.gates.deltas import Skipped, delta
from canaryctl.gates.samples import Delta, HistogramSet, Scrape
from canaryctl.runtimes.generation import PATH, completion_body
from canaryctl.runtimes.grid.rules import EngineRules
from canaryctl.runtimes.httpclient import client
from canaryctl.runtimes.simulator.graphs import GraphSet
from canaryctl.runtimes.spec import LimitsSpec, WarmupPlan
from canaryctl.runtimes.warmup import WarmupRun, WarmupState, plan_requests

BATCH_S: Final = 180.0
_PREFILLS: Final = 5


@dataclass(frozen=True, slots=True)
class Visits:
    """``rules``: how many tokens a decode has. ``read``: scrapes the engine's step times."""

    url: str
    model: str
    limits: LimitsSpec
    rules: EngineRules
    graphs: GraphSet
    read: Callable[[], Scrape]

    def run(self, batch: int) -> None:
        """So many sequences at once, untimed."""
        plan = WarmupPlan(decode_buckets=(batch,), repeat_per_bucket=1)
        batches = plan_requests(plan, self.limits)
        run = WarmupRun(self.url, self.model, batches, batch_timeout_s=BATCH_S)
        progress = run.wait(BATCH_S)
        if progress.state is not WarmupState.DONE:
            run.cancel()
            raise PermanentError(f"{batch} sequences: {progress.reason or 'not done in time'}")

    def timed_ms(self, batch: int) -> float:
        """The mean step of so many sequences. PermanentError where none ran as it should."""
        before = self.read()
        self.run(batch)
        expected = self.graphs.dispatch(self.tokens(batch), pure_decode=True)
        found = delta(before, self.read())
        return _mean_ms(found, expected.mode.value, expected.bucket, batch)

    def tokens(self, batch: int) -> int:
        """Of a step of so many sequences."""
        return batch * self.rules.decode_tokens


def _mean_ms(found: Delta | Skipped, mode: str, bucket: int, batch: int) -> float:
    """By the histogram of the graph that such a batch is to replay."""
    value = found.values.get(Signal.STEP_TIME) if isinstance(found, Delta) else None
    if not isinstance(value, HistogramSet):
        raise PermanentError(f"the engine's step times cannot be read: {value or found}")
    wanted = {"mode": mode, "bucket": str(bucket)}
    for labels, histogram in value.histograms.items():
        if wanted.items() <= dict(labels).items() and histogram.count:
            return histogram.sum / histogram.count * 1000
    seen = sorted(f"{dict(labels)}" for labels, h in value.histograms.items() if h.count)
    raise PermanentError(
        f"{batch} sequences were to run {mode} at {bucket}, but no step did; seen: {seen}"
    )


def prefill_us(url: str, model: str, limits: LimitsSpec) -> float:
    """Microseconds that a prompt token adds, from two lengths of prompt."""
    most = min(limits.max_model_len, limits.max_num_batched_tokens) - 8
    medians = []
    with client(BATCH_S) as http:
        for tokens in (most // 2, most):
            times = []
            for _ in range(_PREFILLS + 1):
                body = completion_body(model, prompt_tokens=tokens, output_tokens=1)
                begun = time.perf_counter()
                http.post(url + PATH, json=body).raise_for_status()
                times.append(time.perf_counter() - begun)
            medians.append(statistics.median(times[1:]))
    return max(0.0, (medians[1] - medians[0]) / (most - most // 2) * 1e6)
