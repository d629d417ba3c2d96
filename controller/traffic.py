"""Shapes of traffic from a Prometheus server: exact differences of histograms over a range.

At every hour, and at the range's ends, one query asks for each bucket's last raw sample of the
hour before (``last_over_time``). Counts are the differences of these; ``rate()`` and
``increase()``, which guess at the edges, are never asked for. A series that was not there before
counts from zero, since the engine was born in between; one that fell began anew.
"""

import math
import ssl
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import httpx

from canaryctl.common.errors import InputError, TemporaryError
from canaryctl.controller.prometheus import PrometheusSettings, request_headers
from canaryctl.runtimes.grid.distribution import Distribution, Kind, Traffic

SHAPES: Final = "canaryctl_step_shape"
ITERATION_TOKENS: Final = "vllm:iteration_tokens_total"
TIMEOUT_S: Final = 60.0
HOUR_S: Final = 3600
_OF_SCRAPING: Final = ("__name__", "le")

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Range:
    """Times in seconds since 1970."""

    begin: float
    end: float

    def edges(self) -> list[float]:
        """Where to look: the ends, and every full hour between them."""
        hours = range(math.floor(self.begin / HOUR_S) + 1, math.ceil(self.end / HOUR_S))
        return [self.begin, *(float(hour * HOUR_S) for hour in hours), self.end]


def read_traffic(settings: PrometheusSettings, selector: Mapping[str, str], over: Range) -> Traffic:
    """The probe's shapes where there are any, else ``vllm:iteration_tokens_total``.

    ``selector``: labels that the series must have. InputError where neither metric grew in the
    range; TemporaryError where the server cannot be asked.
    """
    headers = request_headers(settings)
    with _client(settings) as client:
        for metric in (SHAPES, ITERATION_TOKENS):
            counts = _Counts()
            edges = over.edges()
            for begin, end in zip([over.begin - HOUR_S, *edges], edges, strict=False):
                span_s = max(1, math.ceil(end - begin))
                query = f"last_over_time({metric}_bucket{_braces(selector)}[{span_s}s])"
                counts.take(
                    end, _ask(client, headers, settings.url, query, end), first=end == over.begin
                )
            if counts.total:
                return counts.traffic(_source(settings.url, metric, selector, over), metric)
    raise InputError(
        f"{settings.url} has no step counted by {SHAPES} or {ITERATION_TOKENS} with "
        f"{_braces(selector)} {_times(over)}; is the engine scraped, under these labels, and did "
        "it serve?"
    )


@dataclass(slots=True)
class _Counts:
    """Steps by hour of day, kind and upper edge."""

    last: dict[Labels, dict[float, float]] = field(default_factory=dict)
    hours: dict[int, dict[str, Counter[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(Counter))
    )
    restarts: int = 0
    grown_at: float | None = None  # the last look that saw more steps than the one before

    @property
    def total(self) -> int:
        return sum(sum(c.values()) for kinds in self.hours.values() for c in kinds.values())

    def take(
        self, at: float, found: Iterator[tuple[dict[str, str], float]], *, first: bool
    ) -> None:
        """The samples at ``at``; at the first time they are only where counting begins."""
        histograms: dict[Labels, dict[float, float]] = defaultdict(dict)
        for series, value in found:
            rest = {name: v for name, v in series.items() if name not in _OF_SCRAPING}
            histograms[tuple(sorted(rest.items()))][float(series["le"])] = value
        for labels, now in histograms.items():
            before = self.last.get(labels, {})
            fell = any(now.get(edge, 0.0) < value for edge, value in before.items())
            self.restarts += fell
            if not first:
                grown = {e: v - (0.0 if fell else before.get(e, 0.0)) for e, v in now.items()}
                self._add(at, dict(labels).get("kind", Kind.SCHEDULED_TOKENS.value), grown)
            self.last[labels] = now

    def _add(self, at: float, kind: str, cumulative: Mapping[float, float]) -> None:
        hour = int((at - 1) % 86400 // HOUR_S)
        below = 0.0
        for edge, reached in sorted(cumulative.items()):
            steps = round(reached - below)
            if steps:
                self.hours[hour][kind][edge] += steps
                self.grown_at = at
            below = reached

    def traffic(self, source: str, metric: str) -> Traffic:
        notes = []
        if metric == ITERATION_TOKENS:
            notes.append(
                f"{metric} counts tokens of any step, and only up to its edges: each step is taken "
                "for one of its bucket's upper edge"
            )
        if self.restarts:
            notes.append(
                f"{self.restarts} histograms began anew without a new instance label: what they "
                "counted between the last look and that is lost"
            )
        whole: dict[str, Counter[float]] = defaultdict(Counter)
        for kinds in self.hours.values():
            for kind, counts in kinds.items():
                whole[kind].update(counts)
        by_hour = {hour: _distributions(kinds) for hour, kinds in sorted(self.hours.items())}
        return Traffic(source, _distributions(whole), tuple(notes), by_hour, self.grown_at)


def _distributions(kinds: Mapping[str, "Counter[float]"]) -> dict[Kind, Distribution]:
    """A step above the last edge is taken for one just above it."""
    known = set(Kind)
    found = {}
    for kind, counts in kinds.items():
        if kind not in known:
            continue  # a later probe counts more than this planner knows
        finite = [edge for edge in counts if math.isfinite(edge)]
        top = int(max(finite, default=0)) + 1
        sizes: Counter[int] = Counter()
        for edge, steps in counts.items():
            sizes[max(1, int(edge)) if math.isfinite(edge) else top] += steps
        found[Kind(kind)] = Distribution.of(sizes)
    return found


def _client(settings: PrometheusSettings) -> httpx.Client:
    verify: bool | ssl.SSLContext = True
    if settings.ca_file is not None or settings.cert_file is not None:
        verify = ssl.create_default_context(
            cafile=None if settings.ca_file is None else str(settings.ca_file)
        )
        if settings.cert_file is not None:
            verify.load_cert_chain(settings.cert_file, settings.key_file)
    return httpx.Client(
        base_url=settings.url, timeout=TIMEOUT_S, trust_env=False, verify=verify,
        follow_redirects=False,
    )  # fmt: skip


def _ask(
    client: httpx.Client, headers: Mapping[str, str], url: str, query: str, at: float
) -> Iterator[tuple[dict[str, str], float]]:
    try:
        answer = client.post(
            "/api/v1/query",
            data={"query": query, "time": f"{at:.3f}"},
            headers=headers,
        )
        document: dict[str, Any] = answer.json()
    except httpx.HTTPError as error:
        raise TemporaryError(f"{url} cannot be asked: {type(error).__name__}") from error
    except ValueError as error:
        raise InputError(f"{url} answered no JSON; is it Prometheus?") from error
    if document.get("status") != "success":
        raise InputError(f"{url} refused the query: {str(document.get('error'))[:200]}")
    for series in document["data"]["result"]:
        yield dict(series["metric"]), float(series["value"][1])


def _source(url: str, metric: str, selector: Mapping[str, str], over: Range) -> str:
    return f"{metric}{_braces(selector)} of {url}, {_times(over)}"


def _times(over: Range) -> str:
    begin, end = (
        f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}Z" for at in (over.begin, over.end)
    )
    return f"from {begin} to {end}"


def _braces(labels: Mapping[str, str]) -> str:
    inner = ",".join(f"{name}={_quoted(value)}" for name, value in sorted(labels.items()))
    return "{" + inner + "}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
