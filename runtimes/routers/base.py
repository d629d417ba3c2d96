"""The traffic router of a service: pools of instances and the share that each takes."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PoolMember:
    instance: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Pool:
    """Instances of one artifact that take traffic together.

    ``fallback``: the pool that gets the requests this one refuses or resets before a
    response has begun.
    """

    name: str
    artifact: str  # name@version, told to clients in ``x-canaryctl-artifact``
    digest: str
    members: tuple[PoolMember, ...]
    weight: int  # per cent, 0-100
    fallback: str | None = None


@dataclass(frozen=True, slots=True)
class RouteTable:
    """All pools of a service. Weights sum to 100, or to 0 while nothing serves."""

    service: str
    pools: tuple[Pool, ...]

    def __post_init__(self) -> None:
        total = sum(pool.weight for pool in self.pools)
        if total not in (0, 100) or any(not 0 <= pool.weight <= 100 for pool in self.pools):
            raise ValueError(f"weights of {self.service} sum to {total}, expected 100 (or 0)")
        names = [pool.name for pool in self.pools]
        if len(set(names)) != len(names):
            raise ValueError(f"pools of {self.service} repeat a name: {names}")

    @property
    def weights(self) -> dict[str, int]:
        return {pool.name: pool.weight for pool in self.pools}


@dataclass(frozen=True, slots=True)
class RouterAddress:
    url: str  # where users' requests go
    admin_url: str


class Router(Protocol):
    """A traffic router. It lives on when the controller dies.

    ``token``: the fencing token of whoever acts; None for one that is alone. Once a higher one
    was here nothing of a lower one lands: StaleTokenError.
    """

    name: str

    def ensure(self, service: str, port: int, token: int | None = None) -> RouterAddress:
        """Start the service's router unless it runs, listening for users on ``port``."""

    def apply(self, table: RouteTable, token: int | None = None) -> None:
        """Ask for this table. Returns before it is in force; raises TemporaryError."""

    def effective_weights(self, service: str) -> dict[str, int] | None:
        """Pool → weight as the router itself reports being in force; None when it cannot say."""

    def remove(self, service: str) -> None:
        """Stop the service's router."""
