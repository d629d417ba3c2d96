"""Recording a release: the artifact, its eager variant and the release's row. No effects on
engines or traffic: whoever holds the service's lease acts on the row."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from uuid import uuid4

from canaryctl.common.errors import InputError
from canaryctl.controller.artifact.digest import digest_of
from canaryctl.controller.artifact.loader import LoadedArtifact
from canaryctl.controller.artifact.schema import ArtifactDocument, Rollout, Step
from canaryctl.controller.judge import gate_terms, undecidable_gates
from canaryctl.controller.model import (
    Artifact,
    Release,
    ReleaseKind,
    Service,
)
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


class Submitter:
    """Records releases. ``engine``: name → adapter; ``port``: a free port for a new router."""

    def __init__(
        self, store: Store, engine: Callable[[str], Engine], port: Callable[[], int]
    ) -> None:
        self._store, self._engine, self._port = store, engine, port

    def release(self, loaded: LoadedArtifact, *, actor: str, now: datetime) -> Release:
        """A release of ``loaded``: the service's first, when it has no stable runtime yet."""
        document = _with_absolute_loads(loaded.document, loaded.directory)
        history = _history(document, loaded.directory)
        service = self._store.ensure_service(document.service, self._port, now)
        self._register(document, loaded.digest, now)
        if service.stable_digest == loaded.digest:
            title = f"{document.name}@{document.version}"
            raise AlreadyStableError(service.name, title, service.stable_release)
        return self._create(service, document, loaded.digest, now=now, actor=actor, history=history)

    def retry(self, release: Release, *, actor: str, reason: str, now: datetime) -> Release:
        """A new attempt of the same document, with evidence of its own and the same history."""
        terms = self._store.gate_terms(release.id)
        service = self._store.service(release.service)
        if service.stable_digest == release.digest:
            title = f"{release.document.name}@{release.document.version}"
            raise AlreadyStableError(service.name, title, service.stable_release)
        return self._create(
            service,
            release.document,
            release.digest,
            now=now,
            actor=actor,
            hold=f"retry of {release.id}" + (f": {reason}" if reason else ""),
            history=terms.context.history if terms is not None else None,
        )

    def rollback(
        self, service_name: str, to: str, *, actor: str, reason: str, now: datetime
    ) -> Release:
        """Back to ``previous``, ``eager`` or an artifact by reference: hard gates only."""
        service = self._store.service(service_name)
        if service.stable_release is None or service.stable_digest is None:
            raise InputError(f"{service_name} has no stable runtime to roll back from")
        current = self._store.release(service.stable_release)
        digest, document = self._target(service, current, to)
        if digest == service.stable_digest:
            title = f"{document.name}@{document.version}"
            raise AlreadyStableError(service.name, title, service.stable_release)
        hard = tuple(gate for gate in document.gates if gate.name in HARD_GATES)
        document = document.model_copy(update={"gates": hard})
        return self._create(
            service,
            document,
            digest,
            now=now,
            actor=actor,
            kind=ReleaseKind.ROLLBACK,
            hold=f"rollback to {to}" + (f": {reason}" if reason else ""),
        )

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

    def _create(
        self,
        service: Service,
        document: ArtifactDocument,
        digest: str,
        *,
        now: datetime,
        actor: str,
        kind: ReleaseKind | None = None,
        hold: str | None = None,
        history: AaHistory | None = None,
    ) -> Release:
        first = service.stable_digest is None
        release = Release(
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
        plan = make_plan(release)
        terms = gate_terms(release, plan, history)
        undecidable = undecidable_gates(release, plan, terms)
        if undecidable:
            raise UndecidableError(undecidable)
        return self._store.create_release(release, now=now, actor=actor, terms=terms)


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
