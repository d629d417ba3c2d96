"""A gate as an artifact declares it."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from canaryctl.common.units import Bytes, Ratio, Seconds

QuantileName = Literal["p99", "p95", "p90", "p50"]


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"found {text!r}, which is no regular expression: {error}") from error
    return text


MetricName = Annotated[str, Field(pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$")]
LabelName = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]
LabelPattern = Annotated[str, AfterValidator(_pattern)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MetricSelector(_Frozen):
    """One metric of the engine: a counter, or a histogram by its name without ``_bucket``.

    ``labels``: label → regular expression that its whole value must match. Series that differ
    in the labels ``sum_over`` are added; any other multiplicity is ambiguous.
    ``absent: zero``: a series of the metric appears with its first event only, so that where
    others of the metric are there its absence is none.
    """

    metric: MetricName
    labels: dict[LabelName, LabelPattern] = Field(default_factory=dict)
    sum_over: tuple[LabelName, ...] = ()
    absent: Literal["zero"] | None = None


class GateSpec(_Frozen):
    """``{name: ttft_p99, max_regression: 10%}``. The registry says which limits a gate takes.

    A gate of the artifact's own has a name of its own and either ``numerator`` and
    ``denominator`` or ``histogram`` and ``quantile``.
    """

    name: str
    max_regression: Ratio | None = None  # against the baseline over the same windows
    max_ratio: Ratio | None = None  # a fixed share of requests or steps
    min_ratio: Ratio | None = None  # a fixed least share
    max: Annotated[int, Field(ge=0, strict=True)] | None = None  # a number of events
    max_seconds: Seconds | None = None  # an absolute limit
    max_bytes: Bytes | None = None  # an absolute limit
    max_nats: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # of log-probability
    alpha: Ratio = 0.01  # false rollbacks, over the whole release and all gates
    beta: Ratio = 0.05  # false passes at the margin
    margin: Ratio = 0.33  # what a pass must exclude
    interpolate: bool = False  # answer inside a bucket by interpolation (latency; docs/gates.md)
    confirm: Literal["saturation"] | None = None  # by as many requests at once (max_concurrency)
    min_samples: Annotated[int, Field(gt=0, strict=True)] | None = None
    numerator: MetricSelector | None = None
    denominator: MetricSelector | None = None
    histogram: MetricSelector | None = None
    quantile: QuantileName | None = None
    phi: Annotated[float, Field(ge=1)] | None = None  # successive counts taken for one observation

    @property
    def is_custom(self) -> bool:
        return any((self.numerator, self.denominator, self.histogram, self.quantile))
