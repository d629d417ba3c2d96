"""What a simulated engine counts: plain numbers, cheap to raise at every token."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from canaryctl.runtimes.simulator.batching import Step


def fine_edges(lowest: float, highest: float) -> tuple[float, ...]:
    """Edges ``lowest · 1.1^(k/2)`` until ``highest`` is reached: two of them span 10 %."""
    edges, k = [lowest], 1
    while edges[-1] < highest:
        edges.append(lowest * 1.1 ** (k / 2))
        k += 1
    return tuple(edges)


# vLLM's own edges (vllm/v1/metrics/loggers.py).
TTFT_EDGES = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_EDGES = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_EDGES = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
ITERATION_EDGES = (1.0, *(float(2**power) for power in range(3, 15)))
# The probe's: the range of an engine whose first token takes milliseconds.
FINE_REQUEST_EDGES = fine_edges(0.001, 165.0)
FINE_TOKEN_EDGES = fine_edges(0.0002, 10.0)

FINISHED_REASONS = ("stop", "length", "abort", "error")


class Histogram:
    """Counts by upper edge, the last one without limit; and the sum."""

    __slots__ = ("counts", "edges", "sum")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.edges, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)


StepKey = tuple[str, str, str, str]  # mode, bucket, pure_decode, reason


@dataclass(slots=True)
class Stats:
    """Everything counted since the start of the engine. Times are the model's, in seconds."""

    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_EDGES))
    tpot: Histogram = field(default_factory=lambda: Histogram(TOKEN_EDGES))
    itl: Histogram = field(default_factory=lambda: Histogram(TOKEN_EDGES))
    e2e: Histogram = field(default_factory=lambda: Histogram(REQUEST_EDGES))
    fine_ttft: Histogram = field(default_factory=lambda: Histogram(FINE_REQUEST_EDGES))
    fine_tpot: Histogram = field(default_factory=lambda: Histogram(FINE_TOKEN_EDGES))
    fine_itl: Histogram = field(default_factory=lambda: Histogram(FINE_TOKEN_EDGES))
    fine_e2e: Histogram = field(default_factory=lambda: Histogram(FINE_REQUEST_EDGES))
    iteration_tokens: Histogram = field(default_factory=lambda: Histogram(ITERATION_EDGES))
    finished: Counter[str] = field(default_factory=Counter)
    steps: Counter[StepKey] = field(default_factory=Counter)
    http: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # handler, method, 2xx
    prompt_tokens: int = 0
    generation_tokens: int = 0
    tokens_actual: int = 0
    tokens_padded: int = 0
    preemptions: int = 0
    oom: int = 0

    def observe_step(self, step: Step) -> None:
        self.tokens_actual += step.tokens
        self.tokens_padded += step.padded
        dispatch = step.dispatch
        pure = "true" if step.pure_decode else "false"
        self.steps[dispatch.mode.value, str(dispatch.bucket), pure, dispatch.reason.value] += 1

    def observe_iteration(self, prompt_tokens: int, generated: int) -> None:
        """A step that made tokens: those of prompts now computed, and those generated."""
        self.prompt_tokens += prompt_tokens
        self.generation_tokens += generated
        self.iteration_tokens.observe(prompt_tokens + generated)

    def observe_first_token(self, seconds: float) -> None:
        self.ttft.observe(seconds)
        self.fine_ttft.observe(seconds)

    def observe_gap(self, seconds: float) -> None:
        self.itl.observe(seconds)
        self.fine_itl.observe(seconds)

    def observe_finish(
        self, reason: str, *, e2e_s: float, decode_s: float, output_tokens: int
    ) -> None:
        """A request that was answered: ``decode_s`` from its first token to its last."""
        self.finished[reason] += 1
        self.e2e.observe(e2e_s)
        self.fine_e2e.observe(e2e_s)
        # vLLM counts an answer of one token as 0 s a token; the probe leaves it out.
        per_token_s = decode_s / (output_tokens - 1) if output_tokens > 1 else 0.0
        self.tpot.observe(per_token_s)
        if output_tokens > 1:
            self.fine_tpot.observe(per_token_s)
