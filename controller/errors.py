"""Errors of the controller, under canaryctl.common.errors."""

from canaryctl.common.errors import CanaryctlError, ConflictError, InputError


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
