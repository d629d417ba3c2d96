"""A gate as an artifact declares it."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from canaryctl.common.units import Ratio, Seconds


class GateSpec(BaseModel):
    """``{name: ttft_p99, max_regression: 10%}``. The registry says which limits a gate takes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    max_regression: Ratio | None = None  # against the baseline over the same windows
    max_ratio: Ratio | None = None  # a fixed share of requests or steps
    max: Annotated[int, Field(ge=0, strict=True)] | None = None  # a number of events
    max_seconds: Seconds | None = None  # an absolute limit
    alpha: Ratio = 0.01  # false rollbacks, over the whole release and all gates
    beta: Ratio = 0.05  # false passes at the margin
    margin: Ratio = 0.33  # what a pass must exclude
    min_samples: Annotated[int, Field(gt=0, strict=True)] | None = None
