"""What a simulated engine counts: plain numbers, cheap to raise at every token.

What the probe would count of a real engine is counted in the probe's own terms, so that both
show the very same families.
"""

from collections import Counter
from dataclasses import dataclass, field

from canaryctl.runtimes.probe.canaryctl_probe.histograms import (
    STEP_EDGES,
    Histogram,
    size_edges,
)
from canaryctl.runtimes.probe.canaryctl_probe.recorder import StepCount, latencies
from canaryctl.runtimes.probe.canaryctl_probe.steps import Step as StepLabels
from canaryctl.runtimes.simulator.batching import Step

# vLLM's own edges (vllm/v1/metrics/loggers.py).
COARSE_TTFT_EDGES = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
COARSE_TOKEN_EDGES = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
COARSE_REQUEST_EDGES = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
ITERATION_EDGES = (1.0, *(float(2**power) for power in range(3, 15)))
FINISHED_REASONS = ("stop", "length", "abort", "error")


COARSE_EDGES = {
    "ttft": COARSE_TTFT_EDGES,
    "prefill": COARSE_REQUEST_EDGES,
    "tpot": COARSE_TOKEN_EDGES,
    "itl": COARSE_TOKEN_EDGES,
    "e2e": COARSE_REQUEST_EDGES,
}


def _coarse_latencies() -> dict[str, Histogram]:
    return {name: Histogram(edges) for name, edges in COARSE_EDGES.items()}


@dataclass(slots=True)
class Stats:
    """Everything counted since the start of the engine. Times are the model's, in seconds.

    ``max_num_seqs``, ``max_num_batched_tokens``: how large a step can be.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    coarse: dict[str, Histogram] = field(default_factory=_coarse_latencies)  # vLLM's own
    fine: dict[str, Histogram] = field(default_factory=latencies)  # the probe's
    iteration_tokens: Histogram = field(default_factory=lambda: Histogram(ITERATION_EDGES))
    finished: Counter[str] = field(default_factory=Counter)
    steps: dict[StepLabels, StepCount] = field(default_factory=dict)
    shapes: dict[str, Histogram] = field(default_factory=dict)  # by kind
    step_times: dict[tuple[str, int], Histogram] = field(default_factory=dict)  # mode, bucket
    http: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # handler, method, 2xx
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    oom: int = 0
    _decoded_before: bool = False  # the last step held decodes alone

    def observe_step(self, step: Step) -> None:
        """A step that has ended and whose tokens are not handed out yet."""
        mode, bucket = step.dispatch.mode.value, step.dispatch.bucket
        pure = "true" if step.pure_decode else "false"
        labels = StepLabels(mode, bucket, pure, step.dispatch.reason.value)
        count = self.steps.setdefault(labels, StepCount())
        count.steps += 1
        count.actual += step.tokens
        count.padded += step.padded
        self._observe_shapes(step)
        if step.pure_decode and self._decoded_before:
            times = self.step_times.setdefault((mode, bucket), Histogram(STEP_EDGES))
            times.observe(step.end - step.begin)
        self._decoded_before = step.pure_decode

    def _observe_shapes(self, step: Step) -> None:
        self._shape("scheduled_tokens", self.max_num_batched_tokens).observe(step.tokens)
        if step.pure_decode:
            self._shape("decode_sequences", self.max_num_seqs).observe(step.tokens)
            return
        decodes = sum(request.decoding for request, _ in step.work)
        self._shape("mixed_tokens", self.max_num_batched_tokens).observe(step.tokens)
        self._shape("prefill_tokens", self.max_num_batched_tokens).observe(step.tokens - decodes)

    def _shape(self, kind: str, limit: int) -> Histogram:
        if kind not in self.shapes:
            self.shapes[kind] = Histogram(size_edges(limit))
        return self.shapes[kind]

    def observe_iteration(self, prompt_tokens: int, generated: int) -> None:
        """A step that made tokens: those of prompts now computed, and those generated."""
        self.prompt_tokens += prompt_tokens
        self.generation_tokens += generated
        self.iteration_tokens.observe(prompt_tokens + generated)

    def observe_first_token(self, seconds: float) -> None:
        self._observe("ttft", seconds)

    def observe_gap(self, seconds: float) -> None:
        self._observe("itl", seconds)

    def observe_finish(
        self, reason: str, *, e2e_s: float, prefill_s: float, decode_s: float, output_tokens: int
    ) -> None:
        """A request that was answered: ``prefill_s`` from its first step to its first token,
        ``decode_s`` from there to its last."""
        self.finished[reason] += 1
        self._observe("e2e", e2e_s)
        self._observe("prefill", prefill_s)
        if output_tokens > 1:
            self._observe("tpot", decode_s / (output_tokens - 1))
        else:  # vLLM counts an answer of one token as 0 s a token; the probe leaves it out
            self.coarse["tpot"].observe(0.0)

    def _observe(self, latency: str, seconds: float) -> None:
        self.coarse[latency].observe(seconds)
        self.fine[latency].observe(seconds)
