"""Recording a release: the artifact, its eager variant and the release's row. No effects on
engines or traffic: whoever holds the service's lease acts on the row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from uuid import uuid4

from canaryctl.common.errors import InputError
from canaryctl.controller.artifact.digest import digest_of
from canaryctl.controller.artifact.loader import LoadedArtifact
from canaryctl.controller.artifact.schema import ArtifactDocument, Rollout, Step
from canaryctl.controller.forecast import ReleaseForecast, Survey
from canaryctl.controller.forecast_report import forecast_document
from canaryctl.controller.judge import gate_terms
from canaryctl.controller.model import (
    Artifact,
    Release,
    ReleaseKind,
    Service,
)
from canaryctl.controller.offers import forecast_with_offers
from canaryctl.controller.plan import HARD_GATES, make_plan
from canaryctl.controller.samplefiles import load_history
from canaryctl.controller.states import Phase
from canaryctl.controller.store import Store
from canaryctl.gates.history import AaHistory
from canaryctl.runtimes.engines.base import Engine

EAGER = "eager"
PREVIOUS = "previous"


class AlreadyStableError(InputError):
    """The service runs exactly this runtime: there is nothing to release."""

    def __init__(self, service: str, title: str, release: str | None) -> None:
        super().__init__(f"{service} already runs {title}: nothing to release")
        self.release = release


class UndecidableError(InputError):
    """Gates that could never be decided by this plan: refused before anything is started."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("this plan cannot decide its gates:\n" + "\n".join(reasons))


@dataclass(frozen=True, slots=True)
class Draft:
    """A release that is not recorded yet. ``history``: what its gates know of equal engines."""

    release: Release
    history: AaHistory | None = None


def nobody_looked(release: Release, rate: float | None) -> Survey:
    """A survey of a service that cannot be looked at."""
    return Survey(silence=f"nobody looked at {release.service}")


class Submitter:
    """Records releases. ``engine``: name → adapter; ``port``: a free port for a new router;
    ``survey``: how a release's service does now, at a rate of traffic that may be given."""

    def __init__(
        self,
        store: Store,
        engine: Callable[[str], Engine],
        port: Callable[[], int],
        survey: Callable[[Release, float | None], Survey] = nobody_looked,
    ) -> None:
        self._store, self._engine, self._port, self._survey = store, engine, port, survey

    def draft(self, loaded: LoadedArtifact, *, now: datetime) -> Draft:
        """The release of ``loaded`` as it would be recorded now; nothing is. AlreadyStableError
        where there is nothing to release."""
        document = _with_absolute_loads(loaded.document, loaded.directory)
        known = {service.name: service for service in self._store.services()}
        service = known.get(document.service) or Service(document.service, port=0, created_at=now)
        release = self._draft(service, document, loaded.digest, now=now)
        return Draft(release, _history(document, loaded.directory))

    def forecast(self, draft: Draft, rate: float | None = None) -> ReleaseForecast:
        """When the gates of a release can decide. ``rate``: requests a second to the service;
        None: it is counted, which takes seconds."""
        survey = replace(self._survey(draft.release, rate), history=draft.history)
        return forecast_with_offers(draft.release, survey)

    def check(self, draft: Draft, rate: float | None) -> ReleaseForecast:
        """The forecast of a release that can be decided; UndecidableError of one that cannot."""
        found = self.forecast(draft, rate)
        if found.refusals:
            raise UndecidableError(found.refusals)
        return found

    def release(
        self, loaded: LoadedArtifact, *, actor: str, now: datetime, rate: float | None = None
    ) -> Release:
        """A release of ``loaded``: the service's first, when it has no stable runtime yet.
        UndecidableError where the plan cannot decide its gates (``rate``: see :meth:`forecast`).
        """
        forecast = self._checked(self.draft(loaded, now=now), rate)
        self._store.ensure_service(loaded.document.service, self._port, now)
        draft = self.draft(loaded, now=now)  # the service may have changed meanwhile
        self._register(draft.release.document, loaded.digest, now)
        return self._record(draft, forecast, now=now, actor=actor)

    def retry(
        self,
        release: Release,
        *,
        actor: str,
        reason: str,
        now: datetime,
        rate: float | None = None,
    ) -> Release:
        """A new attempt of the same document, with evidence of its own and the same history."""
        terms = self._store.gate_terms(release.id)
        again = self._draft(
            self._store.service(release.service),
            release.document,
            release.digest,
            now=now,
            hold=f"retry of {release.id}" + (f": {reason}" if reason else ""),
        )
        draft = Draft(again, terms.context.history if terms is not None else None)
        return self._record(draft, self._checked(draft, rate), now=now, actor=actor)

    def rollback(
        self, service_name: str, to: str, *, actor: str, reason: str, now: datetime
    ) -> Release:
        """Back to ``previous``, ``eager`` or an artifact by reference: hard gates only."""
        service = self._store.service(service_name)
        if service.stable_release is None or service.stable_digest is None:
            raise InputError(f"{service_name} has no stable runtime to roll back from")
        current = self._store.release(service.stable_release)
        digest, document = self._target(service, current, to)
        hard = tuple(gate for gate in document.gates if gate.name in HARD_GATES)
        document = document.model_copy(update={"gates": hard})
        release = self._draft(
            service,
            document,
            digest,
            now=now,
            kind=ReleaseKind.ROLLBACK,
            hold=f"rollback to {to}" + (f": {reason}" if reason else ""),
        )
        return self._record(Draft(release), None, now=now, actor=actor)

    def _target(self, service: Service, current: Release, to: str) -> tuple[str, ArtifactDocument]:
        if to == EAGER:
            runtime = self._store.artifact(current.digest).runtime
            if not runtime.uses_graphs:
                raise InputError(f"{service.name} runs without graphs already: no eager variant")
            digest = digest_of(self._engine(runtime.engine.name).eager(runtime))
        elif to == PREVIOUS:
            if current.previous_digest is None:
                raise InputError(f"{service.name} has had no runtime before this one")
            digest = current.previous_digest
        else:
            digest = self._store.artifact(to, service.name).digest
        artifact = self._store.artifact(digest)
        document = self._document_of(service.name, artifact) or current.document
        return digest, document.model_copy(
            update={"name": artifact.name, "version": artifact.version, "runtime": artifact.runtime}
        )

    def _document_of(self, service: str, artifact: Artifact) -> ArtifactDocument | None:
        """What the artifact (or the one it was derived from) was last released with."""
        digests = {artifact.digest, artifact.eager_of}
        for release in self._store.releases(service):
            if release.digest in digests:
                return release.document
        return None

    def _register(self, document: ArtifactDocument, digest: str, now: datetime) -> None:
        self._store.register_artifact(
            Artifact(
                digest=digest,
                name=document.name,
                version=document.version,
                service=document.service,
                runtime=document.runtime,
                created_at=now,
            )
        )
        if document.runtime.uses_graphs:
            eager = self._engine(document.runtime.engine.name).eager(document.runtime)
            self._store.register_artifact(
                Artifact(
                    digest=digest_of(eager),
                    name=document.name,
                    version=f"{document.version}-eager",
                    service=document.service,
                    runtime=eager,
                    created_at=now,
                    eager_of=digest,
                )
            )

    def _draft(
        self,
        service: Service,
        document: ArtifactDocument,
        digest: str,
        *,
        now: datetime,
        kind: ReleaseKind | None = None,
        hold: str | None = None,
    ) -> Release:
        if service.stable_digest == digest:
            title = f"{document.name}@{document.version}"
            raise AlreadyStableError(service.name, title, service.stable_release)
        first = service.stable_digest is None
        return Release(
            id=f"r{now:%y%m%d}-{uuid4().hex[:6]}",
            service=service.name,
            kind=kind or (ReleaseKind.FIRST if first else ReleaseKind.RELEASE),
            digest=digest,
            document=document,
            phase=Phase.PENDING,
            revision=0,
            created_at=now,
            phase_at=now,
            deadline_at=now + timedelta(seconds=document.rollout.progress_deadline),
            previous_digest=service.stable_digest,
            previous_pool=service.stable_pool,
            previous_replicas=service.stable_replicas,
            hold=hold,
        )

    def _checked(self, draft: Draft, rate: float | None) -> ReleaseForecast | None:
        """None: another release is active, and so this one is refused for that."""
        if self._store.active_release(draft.release.service) is not None:
            return None
        return self.check(draft, rate)

    def _record(
        self, draft: Draft, forecast: ReleaseForecast | None, *, now: datetime, actor: str
    ) -> Release:
        terms = gate_terms(draft.release, make_plan(draft.release), draft.history)
        data = {"plan": forecast_document(forecast)} if forecast is not None else {}
        return self._store.create_release(
            draft.release, now=now, actor=actor, terms=terms, data=data
        )


def _with_absolute_loads(document: ArtifactDocument, directory: Path) -> ArtifactDocument:
    """Load profiles are named beside the artifact; whoever acts may stand elsewhere."""

    def absolute(step: Step) -> Step:
        if step.load is None or step.load == "generated":
            return step
        path = (directory / step.load).resolve()
        if not path.is_file():
            raise InputError(f"rollout.steps: found load {step.load!r}, but {path} is no file")
        return step.model_copy(update={"load": str(path)})

    steps = tuple(absolute(step) for step in document.rollout.steps)
    rollout: Rollout = document.rollout.model_copy(update={"steps": steps})
    return document.model_copy(update={"rollout": rollout})


def _history(document: ArtifactDocument, directory: Path) -> AaHistory | None:
    """What the file beside the artifact says: from now on it lies with the release."""
    named = document.rollout.history
    if named is None:
        return None
    try:
        found = load_history(directory / named)
    except InputError as error:
        raise InputError(f"rollout.history: {error}") from None
    if found.lacks:
        raise InputError(f"rollout.history: {directory / named}: {found.lacks}")
    return found
