"""Errors of the controller, under canaryctl.common.errors."""

from canaryctl.common.errors import (
    CanaryctlError,
    ConflictError,
    InputError,
    PermanentError,
    TemporaryError,
)


class ArtifactError(InputError):
    """An artifact file that cannot be used; every mistake at once, with line and column."""


class ImmutableArtifactError(InputError):
    """The same name and version with another runtime: a new version is needed."""


class NotFoundError(InputError):
    """No such release, service, artifact or instance."""


class ActiveReleaseError(ConflictError):
    """Another release of the service is not final."""


class StaleWriteError(CanaryctlError):
    """The row changed since it was read: read again and decide anew."""


class FencedError(CanaryctlError):
    """The lease was lost: another controller acts, and this one's writes do not land."""


class LeaseHeldError(ConflictError):
    """A controller holds a lease, and may act until it has expired."""


class OtherHostError(PermanentError):
    """Another machine writes this SQLite database: several need PostgreSQL."""


class AmbiguousRefError(InputError):
    """A shortened reference that more than one row matches; the message lists them."""


class FinalReleaseError(ConflictError):
    """The release has ended: nothing can be asked of it any more."""


class UnloggedChangeError(CanaryctlError):
    """A phase and the events that should lead to it disagree: a fault in the caller."""


class EndedInstanceError(CanaryctlError):
    """An instance that has ended does not come back: another one is started."""


class InvariantError(CanaryctlError):
    """The database refused a write that would break one of its invariants."""


class NoGpuError(TemporaryError):
    """No GPU is free for the claim now; the message names what is taken by whom."""


class StoreUnavailableError(TemporaryError):
    """The database is locked, full or out of reach."""


class SchemaError(PermanentError):
    """The database's schema is not the one that this version works with."""
