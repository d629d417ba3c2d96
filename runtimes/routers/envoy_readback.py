"""What Envoy's own documents say: pure readers of its files and of its admin interface."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from canaryctl.runtimes.routers.envoy_config import METADATA, ROUTES

Members = frozenset[tuple[int | str, ...]]  # priority, address, artifact, digest, instance


def ports(document: Mapping[str, Any]) -> tuple[int, int]:
    """Of a bootstrap: the port for users, and the port of the admin interface."""
    addresses = (
        document["static_resources"]["listeners"][0]["address"],
        document["admin"]["address"],
    )
    users, admin = (int(address["socket_address"]["port_value"]) for address in addresses)
    return users, admin


def cluster_names(resources: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(cluster["name"]) for cluster in resources]


@dataclass(frozen=True, slots=True)
class InForce:
    """What the admin interface's ``/config_dump?include_eds`` says is in force."""

    routes_version: str | None
    weights: Mapping[str, int] | None  # None: no route configuration has been accepted yet
    clusters_version: str | None  # None while there is none: Envoy gives no version to nothing
    clusters: frozenset[str]
    members: Mapping[str, Members]  # of each active cluster


def in_force(dump: Mapping[str, Any]) -> InForce:
    sections: dict[str, Mapping[str, Any]] = {
        str(section["@type"]).rsplit(".", 1)[-1]: section for section in dump.get("configs", [])
    }
    cluster_dump = sections.get("ClustersConfigDump", {})
    active = {entry["cluster"]["name"] for entry in cluster_dump.get("dynamic_active_clusters", [])}
    endpoints = sections.get("EndpointsConfigDump", {}).get("dynamic_endpoint_configs", [])
    route_version, weights = _routes_in_force(sections.get("RoutesConfigDump", {}))
    return InForce(
        routes_version=route_version,
        weights=weights,
        clusters_version=cluster_dump.get("version_info"),
        clusters=frozenset(active),
        members={
            assignment["cluster_name"]: members_of(assignment)
            for assignment in (entry.get("endpoint_config", {}) for entry in endpoints)
            if assignment.get("cluster_name") in active
        },
    )


def members_of(assignment: Mapping[str, Any]) -> Members:
    """The members of a load assignment, as written by :func:`members` or told by Envoy."""
    found: set[tuple[int | str, ...]] = set()
    for tier in assignment.get("endpoints", []):
        for endpoint in tier.get("lb_endpoints", []):
            address = endpoint["endpoint"]["address"]["socket_address"]
            named = endpoint["metadata"]["filter_metadata"][METADATA]
            where = f"{address['address']}:{address['port_value']}"
            what = tuple(str(named[field]) for field in ("artifact", "digest", "instance"))
            found.add((int(tier.get("priority", 0)), where, *what))
    return frozenset(found)


def _routes_in_force(dump: Mapping[str, Any]) -> tuple[str | None, Mapping[str, int] | None]:
    for entry in dump.get("dynamic_route_configs", []):
        configuration = entry.get("route_config", {})
        if configuration.get("name") != ROUTES:
            continue
        route = configuration["virtual_hosts"][0]["routes"][0]
        weights = dict.fromkeys(route["metadata"]["filter_metadata"][METADATA]["pools"], 0)
        weighted = route.get("route", {}).get("weighted_clusters", {}).get("clusters", [])
        weights |= {str(cluster["name"]): int(cluster.get("weight", 0)) for cluster in weighted}
        return entry.get("version_info"), weights
    return None, None
