"""Artifacts: immutable runtimes by digest, and the names that point at them."""

import re

from sqlalchemy import Connection, Select, insert, select

from canaryctl.controller.errors import (
    AmbiguousRefError,
    ImmutableArtifactError,
    NotFoundError,
)
from canaryctl.controller.model import Artifact
from canaryctl.controller.store import tables
from canaryctl.controller.store.base import Repository
from canaryctl.controller.store.codec import artifact_of

_DIGEST_PREFIX = re.compile(r"(?:sha256:)?([0-9a-f]{4,64})")
_names, _runtimes = tables.artifacts, tables.runtimes


class Artifacts(Repository):
    """Registered once, never changed."""

    def register_artifact(self, artifact: Artifact) -> Artifact:
        """The stored artifact of this name and version; the same one again is no error.

        ImmutableArtifactError when name and version stand for another runtime or service.
        """
        with self._database.writing() as connection:
            stored = _named(connection, artifact.name, artifact.version)
            if stored is not None:
                _refuse_another(stored, artifact)
                return stored
            known = connection.execute(
                select(_runtimes.c.digest).where(_runtimes.c.digest == artifact.digest)
            ).one_or_none()
            if known is None:
                connection.execute(
                    insert(_runtimes).values(
                        digest=artifact.digest,
                        runtime=artifact.runtime.as_document(),
                        created_at=artifact.created_at,
                    )
                )
            connection.execute(
                insert(_names).values(
                    name=artifact.name,
                    version=artifact.version,
                    service=artifact.service,
                    digest=artifact.digest,
                    eager_of=artifact.eager_of,
                    created_at=artifact.created_at,
                )
            )
        return artifact

    def artifact(self, ref: str, service: str | None = None) -> Artifact:
        """By digest, unique digest prefix (4 digits or more), ``name@version``, or name.

        A name stands for its latest version, a digest for the first name it was registered
        under; ``service`` leaves only the artifacts of that service.
        """
        with self._database.reading() as connection:
            found = _resolve(connection, ref, service)
        if found is None:
            of = "" if service is None else f" of the service {service}"
            raise NotFoundError(
                f"no artifact {ref!r}{of}; give a digest, the start of one, name@version or a "
                "name (`canaryctl artifact list` shows them)"
            )
        return found

    def artifacts(self, service: str | None = None) -> tuple[Artifact, ...]:
        """All names, in the order of registration."""
        with self._database.reading() as connection:
            rows = connection.execute(_select(service).order_by(_names.c.serial)).mappings()
            return tuple(artifact_of(row) for row in rows)


def _refuse_another(stored: Artifact, wanted: Artifact) -> None:
    if stored.digest != wanted.digest:
        raise ImmutableArtifactError(
            f"{stored.title} is registered with another runtime: found {wanted.digest}, "
            f"registered is {stored.digest}; artifacts never change, so give the new runtime "
            "a new version (`canaryctl artifact diff` shows what differs)"
        )
    if stored.service != wanted.service:
        raise ImmutableArtifactError(
            f"{stored.title} is registered for the service {stored.service}, found "
            f"{wanted.service}; give the artifact of another service a name of its own"
        )


def _select(service: str | None) -> Select[tuple[object, ...]]:
    query = select(
        _names.c.digest,
        _names.c.name,
        _names.c.version,
        _names.c.service,
        _names.c.created_at,
        _names.c.eager_of,
        _runtimes.c.runtime,
    ).join_from(_names, _runtimes, _names.c.digest == _runtimes.c.digest)
    return query if service is None else query.where(_names.c.service == service)


def _named(
    connection: Connection, name: str, version: str, service: str | None = None
) -> Artifact | None:
    query = _select(service).where(_names.c.name == name, _names.c.version == version)
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else artifact_of(row)


def _resolve(connection: Connection, ref: str, service: str | None) -> Artifact | None:
    name, at, version = ref.partition("@")
    if at:
        return _named(connection, name, version, service)
    latest = (
        _select(service)
        .where(_names.c.name == ref)
        # An eager variant that the controller derived is asked for by its version.
        .order_by(_names.c.eager_of.is_not(None), _names.c.serial.desc())
        .limit(1)
    )
    row = connection.execute(latest).mappings().one_or_none()
    if row is not None:
        return artifact_of(row)
    prefix = _DIGEST_PREFIX.fullmatch(ref)
    return None if prefix is None else _by_digest(connection, ref, prefix.group(1), service)


def _by_digest(
    connection: Connection, ref: str, digits: str, service: str | None
) -> Artifact | None:
    rows = connection.execute(
        _select(service)
        .where(_names.c.digest.startswith(f"sha256:{digits}"))
        .order_by(_names.c.serial)
    ).mappings()
    first: dict[str, Artifact] = {}
    for row in rows:
        first.setdefault(row["digest"], artifact_of(row))
    if len(first) > 1:
        raise AmbiguousRefError(
            f"{ref!r} is the start of {len(first)} digests; give more digits: "
            + ", ".join(f"{digest} ({artifact.title})" for digest, artifact in first.items())
        )
    return next(iter(first.values()), None)
