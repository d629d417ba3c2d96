"""Releases and their event log. One row changes by compare-and-swap, with its events."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from canaryctl.controller.errors import (
    ActiveReleaseError,
    AmbiguousRefError,
    NotFoundError,
    StaleWriteError,
    UnloggedChangeError,
)
from canaryctl.controller.model import (
    Evidence,
    GateRecord,
    Lease,
    LookRecord,
    Release,
    ReleaseEvent,
)
from canaryctl.controller.states import ACTIVE, FINAL, Phase
from canaryctl.controller.store import tables
from canaryctl.controller.store.base import Repository, held
from canaryctl.controller.store.codec import (
    event_of,
    event_row,
    progress_row,
    release_of,
    release_row,
)
from canaryctl.controller.store.evidence import write_evidence, write_gates
from canaryctl.controller.store.log import follow, replay
from canaryctl.controller.store.looks import write_look, write_terms
from canaryctl.controller.store.requests import answer_requests, answer_the_rest
from canaryctl.controller.store.services import Stable, write_stable
from canaryctl.gates.terms import GateTerms

_releases, _events = tables.releases, tables.release_events


class Releases(Repository):
    """Attempts to make an artifact stable."""

    def create_release(
        self,
        release: Release,
        *,
        now: datetime,
        actor: str,
        terms: GateTerms | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> Release:
        """Record a pending release, the first event of its log, which keeps ``data``, and the
        terms of its gates.

        ActiveReleaseError while another release of the service is not final; NotFoundError
        when the service or the artifact is not registered.
        """
        if release.phase is not Phase.PENDING:
            raise UnloggedChangeError(f"a release begins pending, found {release.phase.value}")
        with self._database.writing() as connection:
            _require_registered(connection, release)
            active = connection.execute(
                select(_releases.c.id, _releases.c.phase).where(
                    _releases.c.service == release.service, _releases.c.phase.in_(ACTIVE)
                )
            ).one_or_none()
            if active is not None:
                raise ActiveReleaseError(
                    f"release {active.id} of the service {release.service} is {active.phase}; "
                    f"wait for it, end it with `canaryctl abort {active.id}`, or pass "
                    "`--supersede` to replace it"
                )
            connection.execute(
                insert(_releases).values(**release_row(release), **progress_row(release))
            )
            created = ReleaseEvent(
                release=release.id,
                seq=1,
                at=now,
                kind="phase",
                message=f"{release.kind.value} of {release.document.name}@"
                f"{release.document.version} recorded",
                to_phase=release.phase,
                actor=actor,
                data=data or {},
            )
            connection.execute(insert(_events).values(event_row(created)))
            if terms is not None:
                write_terms(connection, release.id, terms)
        return release

    def release(self, ref: str) -> Release:
        """By id, or by the start of one id only."""
        with self._database.reading() as connection:
            rows = connection.execute(
                select(_releases)
                .where(_releases.c.id.startswith(ref, autoescape=True))
                .order_by(_releases.c.serial)
            ).mappings()
            found = {row["id"]: row for row in rows} if ref else {}
        if ref in found:
            return release_of(found[ref])
        if not found:
            raise NotFoundError(f"no release {ref!r} (`canaryctl history` shows them)")
        if len(found) > 1:
            raise AmbiguousRefError(
                f"{ref!r} is the start of {len(found)} releases; give more of the id: "
                + ", ".join(found)
            )
        return release_of(next(iter(found.values())))

    def releases(self, service: str | None = None, limit: int | None = None) -> tuple[Release, ...]:
        """Newest first."""
        query = select(_releases).order_by(_releases.c.serial.desc()).limit(limit)
        if service is not None:
            query = query.where(_releases.c.service == service)
        with self._database.reading() as connection:
            return tuple(release_of(row) for row in connection.execute(query).mappings())

    def active_releases(self) -> tuple[Release, ...]:
        """Those that are not final, oldest first; one of a service at most."""
        query = select(_releases).where(_releases.c.phase.in_(ACTIVE)).order_by(_releases.c.serial)
        with self._database.reading() as connection:
            return tuple(release_of(row) for row in connection.execute(query).mappings())

    def count_releases(self) -> dict[tuple[str, Phase], int]:
        """(service, phase) → how many of its releases are in that phase; none: no entry."""
        query = select(_releases.c.service, _releases.c.phase, func.count()).group_by(
            _releases.c.service, _releases.c.phase
        )
        with self._database.reading() as connection:
            return {
                (service, Phase(phase)): count
                for service, phase, count in connection.execute(query)
            }

    def active_release(self, service: str) -> Release | None:
        query = select(_releases).where(
            _releases.c.service == service, _releases.c.phase.in_(ACTIVE)
        )
        with self._database.reading() as connection:
            row = connection.execute(query).mappings().one_or_none()
        return None if row is None else release_of(row)

    def commit(
        self,
        release: Release,
        events: Sequence[ReleaseEvent],
        *,
        fence: Lease,
        now: datetime,
        gates: Sequence[GateRecord] = (),
        look: LookRecord | None = None,
        evidence: Sequence[Evidence] = (),
        answers: Mapping[int, str] | None = None,
        stable: Stable | None = None,
    ) -> Release:
        """Everything that one decision changes, in one transaction or not at all.

        ``release``: the new values; its revision is the one it was decided on. What is
        fixed at creation (service, kind, digest, document) is not written. ``events`` are
        numbered here and must lead from the stored phase to the new one. ``gates``, ``look`` and
        ``evidence`` are what it rests on; the look is numbered here, too. ``answers``: request
        → answer; requests still pending when the release ends are answered too.
        Returns the release as stored. Raises StaleWriteError when the row has changed since
        it was read, FencedError when the lease was lost, IllegalTransitionError and
        UnloggedChangeError for phases that do not follow.
        """
        with self._fenced(fence, now) as connection:
            stored = connection.execute(
                select(
                    _releases.c.service,
                    _releases.c.phase,
                    _releases.c.revision,
                    _releases.c.finished_at,
                ).where(_releases.c.id == release.id)
            ).one_or_none()
            if stored is None:
                raise NotFoundError(f"no release {release.id!r}")
            if stored.revision != release.revision:
                raise StaleWriteError(
                    f"release {release.id} was decided on at revision {release.revision}, it is "
                    f"at {stored.revision}; read it again and decide anew"
                )
            phase, followed = follow(Phase(stored.phase), events)
            if phase is not release.phase:
                raise UnloggedChangeError(
                    f"release {release.id} should become {release.phase.value}, but its events "
                    f"lead from {stored.phase} to {phase.value}"
                )
            final = phase in FINAL
            written = replace(
                release,
                revision=release.revision + 1,
                finished_at=(stored.finished_at or now) if final else None,
            )
            _swap(connection, written, release.revision, fence)
            _append(connection, release.id, followed)
            write_gates(connection, release.id, gates)
            write_evidence(connection, evidence)
            if look is not None:
                write_look(connection, look)
            answer_requests(connection, release.id, answers or {}, now)
            if final:
                answer_the_rest(connection, release.id, f"too late: it is {phase.value}", now)
            if stable is not None:
                write_stable(connection, stored.service, stable)
        return written

    def events(self, release: str) -> tuple[ReleaseEvent, ...]:
        """The whole log, in order."""
        query = select(_events).where(_events.c.release == release).order_by(_events.c.seq)
        with self._database.reading() as connection:
            events = tuple(event_of(row) for row in connection.execute(query).mappings())
        if not events:
            raise NotFoundError(f"no release {release!r} (`canaryctl history` shows them)")
        return events

    def replay_phase(self, release: str) -> Phase:
        """The phase by the log alone; it is the row's."""
        return replay(self.events(release))


def _require_registered(connection: Connection, release: Release) -> None:
    for kind, column, value in (
        ("service", tables.services.c.name, release.service),
        ("artifact", tables.runtimes.c.digest, release.digest),
    ):
        if connection.execute(select(column).where(column == value)).one_or_none() is None:
            raise NotFoundError(f"no {kind} {value!r}; register it before its release")


def _swap(connection: Connection, release: Release, revision: int, fence: Lease) -> None:
    swapped = connection.execute(
        update(_releases)
        .where(_releases.c.id == release.id, _releases.c.revision == revision, held(fence))
        .values(progress_row(release))
    )
    if swapped.rowcount != 1:
        raise StaleWriteError(f"release {release.id} is no longer at revision {revision}")


def _append(connection: Connection, release: str, events: Sequence[ReleaseEvent]) -> None:
    if not events:
        return
    last = connection.execute(
        select(func.max(_events.c.seq)).where(_events.c.release == release)
    ).scalar_one()
    connection.execute(
        insert(_events),
        [
            event_row(replace(event, release=release, seq=last + number))
            for number, event in enumerate(events, start=1)
        ],
    )
