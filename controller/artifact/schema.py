"""The shape of artifact.yaml. ``runtime`` makes the digest; the rest belongs to the release."""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from canaryctl.common.units import Ratio, Seconds
from canaryctl.common.urls import url_fault
from canaryctl.gates.spec import GateSpec
from canaryctl.runtimes.spec import PositiveInt, RuntimeSpec

Name = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$",
        description="lower-case letters, digits, dots and hyphens, at most 63, "
        "a letter or digit first and last",
    ),
]
Version = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,62}$",
        description="letters, digits and . _ + -, at most 63, a letter or digit first",
    ),
]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Rung(StrEnum):
    PREVIOUS = "previous"
    EAGER = "eager"


class PromoteOn(StrEnum):
    NO_HARM = "no_harm"
    PROVEN = "proven"


class Baseline(StrEnum):
    STABLE = "stable"  # the canary is compared with the stable instances
    FRESH = "fresh"  # with as many new ones of the stable artifact, at the same share of traffic


class OnInconclusive(StrEnum):
    ROLLBACK = "rollback"
    PROMOTE = "promote"


class Step(_Frozen):
    """A share of traffic for a time. ``weight: 0`` with ``load`` is judged under requests the
    controller makes, the same on canary and baseline, before any user's request."""

    weight: Annotated[int, Field(ge=0, le=100, strict=True)]
    bake: Seconds = 0.0
    load: str | None = None  # "generated", or a profile file beside the artifact
    requests: PositiveInt | None = None  # per arm
    pause: bool = False  # hold here until `canaryctl resume`

    @model_validator(mode="after")
    def _load_only_before_users(self) -> Self:
        if self.load is not None and self.weight != 0:
            raise ValueError(f"load is for steps of weight 0, found weight {self.weight}")
        if self.requests is not None and self.load is None:
            raise ValueError("requests needs load: generated, or load: FILE")
        return self


class StageDeadlines(_Frozen):
    load: Seconds = 600.0
    compile: Seconds = 600.0
    capture: Seconds = 300.0
    warm: Seconds = 300.0


class Metrics(_Frozen):
    """Where the gates read samples. ``url``: of a Prometheus other than the controller's own;
    the controller's credentials are not sent there."""

    source: Literal["scrape", "prometheus"]
    url: str | None = None

    @model_validator(mode="after")
    def _url_is_of_prometheus(self) -> Self:
        if self.url is None:
            return self
        if self.source != "prometheus":
            raise ValueError(f"url is for source: prometheus, found source: {self.source}")
        fault = url_fault(self.url)
        if fault is not None:
            raise ValueError(fault)
        return self


class Rollout(_Frozen):
    strategy: Literal["surge"] = "surge"
    baseline: Baseline = Baseline.STABLE
    steps: tuple[Step, ...] = (
        Step(weight=5, bake="2m"),
        Step(weight=50, bake="5m"),
    )
    interval: Seconds = 15.0
    stage_deadlines: StageDeadlines = StageDeadlines()
    drain: Seconds = 60.0
    progress_deadline: Seconds = 1800.0
    rollback_window: Seconds = 600.0
    promote_on: PromoteOn = PromoteOn.NO_HARM
    detectable: Ratio = 0.5
    on_inconclusive: OnInconclusive = OnInconclusive.ROLLBACK
    history: str | None = None  # a file of an A/A history beside the artifact
    metrics: Metrics | None = None  # None: Prometheus where the controller has one, else scrape

    @model_validator(mode="after")
    def _steps_rise(self) -> Self:
        weights = [step.weight for step in self.steps]
        if not weights:
            raise ValueError("steps is empty; expected at least one step")
        if weights != sorted(weights):
            raise ValueError(f"step weights must not fall, found {weights}")
        if self.interval < 0.5:
            raise ValueError(f"interval of {self.interval:g}s is too short; at least 500ms")
        return self


class RollbackSpec(_Frozen):
    ladder: tuple[Rung, ...] = (Rung.PREVIOUS, Rung.EAGER)

    @model_validator(mode="after")
    def _no_repeats(self) -> Self:
        if not self.ladder or len(set(self.ladder)) != len(self.ladder):
            raise ValueError(f"ladder needs each rung once, found {[r.value for r in self.ladder]}")
        return self


class SecretRef(_Frozen):
    """A secret by reference. Its value is read when an instance starts, and stored nowhere."""

    from_env: str | None = None
    from_file: str | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.from_env is None) == (self.from_file is None):
            raise ValueError("a secret needs exactly one of from_env and from_file")
        return self


class ArtifactDocument(_Frozen):
    """One artifact.yaml."""

    apiVersion: Literal["canaryctl/v1"]  # noqa: N815  the word that the file format uses
    kind: Literal["RuntimeArtifact"]
    name: Name
    version: Version
    service: Name
    runtime: RuntimeSpec
    replicas: PositiveInt = 1
    secrets: dict[str, SecretRef] = Field(default_factory=dict)
    rollout: Rollout = Rollout()
    gates: tuple[GateSpec, ...]
    rollback: RollbackSpec = RollbackSpec()
