"""What Envoy is told: pure functions that build its JSON documents.

A pool is a cluster. Its endpoints carry artifact, digest and instance as metadata, from which
Envoy itself names in each response who served it, also after a retry. The members of the
fallback pool are the same cluster's endpoints of priority 1: no first attempt goes there while
priority 0 has members, and each retry goes to the priority not tried yet.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from canaryctl.common.errors import InputError
from canaryctl.runtimes.routers.base import Pool, PoolMember, RouteTable

ARTIFACT_HEADER = "x-canaryctl-artifact"
DIGEST_HEADER = "x-canaryctl-digest"
INSTANCE_HEADER = "x-canaryctl-instance"
SESSION_HEADER = "x-session-id"

ROUTES = "users"  # the name of the route configuration
METADATA = "canaryctl"  # the namespace of our endpoint and route metadata
REPLAY_LIMIT_BYTES = 8 * 2**20  # a longer request body is passed on, but never sent twice
ADMIN_PATHS = ("/ready", "/config_dump", "/clusters", "/stats", "/stats/prometheus")

_TYPE = "type.googleapis.com/envoy"
_FILTERS = f"{_TYPE}.extensions.filters"
_RETRY = f"{_TYPE}.extensions.retry"
_HOUR = "3600s"
_NOBODY = {"address_prefix": "255.255.255.255", "prefix_len": 32}
_UNLIMITED = 1_000_000
_NAMED_IN_RESPONSES = {
    ARTIFACT_HEADER: "artifact",
    DIGEST_HEADER: "digest",
    INSTANCE_HEADER: "instance",
}

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Files:
    """Where a service's configuration lies. Envoy follows each file that is moved into place."""

    directory: Path

    @property
    def bootstrap(self) -> Path:
        return self.directory / "bootstrap.json"

    @property
    def clusters(self) -> Path:
        return self.directory / "cds" / "clusters.json"

    @property
    def routes(self) -> Path:
        return self.directory / "rds" / "routes.json"

    @property
    def members_directory(self) -> Path:
        return self.directory / "eds"

    @property
    def log(self) -> Path:
        return self.directory / "envoy.log"

    def members(self, pool: str) -> Path:
        return self.members_directory / f"{quote(pool, safe='')}.json"


def bootstrap(service: str, files: Files, *, host: str, port: int, admin_port: int) -> Document:
    """The static part: one listener for users, the admin interface, and where the rest lies."""
    return {
        "node": {"id": f"canaryctl-{service}", "cluster": service},
        "admin": {
            "address": _address("127.0.0.1", admin_port),
            "allow_paths": [{"exact": path} for path in ADMIN_PATHS]
            + [{"prefix": f"{path}?"} for path in ADMIN_PATHS],
        },
        "dynamic_resources": {"cds_config": _source(files.clusters)},
        "static_resources": {"listeners": [_listener(files, host, port)]},
    }


def clusters(pools: Iterable[str], files: Files) -> list[Document]:
    """One cluster for each named pool. Its members are a file of their own."""
    return [_cluster(pool, files) for pool in sorted(pools)]


def members(pool: Pool, table: RouteTable) -> list[Document]:
    """The endpoints of one pool, with those of its fallback behind them."""
    by_name = {other.name: other for other in table.pools}
    tiers = [pool]
    if pool.fallback is not None:
        if pool.fallback not in by_name:
            raise InputError(
                f"pool {pool.name} of {table.service} falls back to {pool.fallback!r}, which is "
                f"none of its pools: {', '.join(by_name)}"
            )
        tiers.append(by_name[pool.fallback])
    endpoints = [
        {"priority": priority, "lb_endpoints": [_endpoint(tier, member) for member in tier.members]}
        for priority, tier in enumerate(tiers)
    ]
    return [
        {
            "@type": f"{_TYPE}.config.endpoint.v3.ClusterLoadAssignment",
            "cluster_name": pool.name,
            "endpoints": endpoints,
        }
    ]


def routes(table: RouteTable, *, session_header: str) -> list[Document]:
    """One route for everything. Pools are in the order of their names, so that the hash of a
    session falls to another pool only where the weights have moved."""
    ordered = sorted(table.pools, key=lambda pool: pool.name)
    serving = sum(pool.weight for pool in ordered) > 0
    route: Document = {
        "match": {"prefix": "/"},
        # Pools without weight are named here too, so that a read-back tells of every pool.
        "metadata": {"filter_metadata": {METADATA: {"pools": [pool.name for pool in ordered]}}},
        **(_weighted(ordered, session_header) if serving else _nothing_serves(table.service)),
    }
    return [
        {
            "@type": f"{_TYPE}.config.route.v3.RouteConfiguration",
            "name": ROUTES,
            "virtual_hosts": [
                {
                    "name": table.service,
                    "domains": ["*"],
                    "request_body_buffer_limit": REPLAY_LIMIT_BYTES,
                    "routes": [route],
                }
            ],
            "request_headers_to_remove": list(_NAMED_IN_RESPONSES),
            "response_headers_to_remove": list(_NAMED_IN_RESPONSES),
            # Removed first, then added: nobody but Envoy says who served.
            "response_headers_to_add": [
                {"header": {"key": header, "value": f"%UPSTREAM_METADATA({METADATA}:{field})%"}}
                for header, field in _NAMED_IN_RESPONSES.items()
            ],
        }
    ]


def versioned(resources: Sequence[Mapping[str, Any]]) -> Document:
    """A discovery response. Its version is made of its content: equal content, equal version."""
    content = json.dumps(resources, sort_keys=True).encode()
    return {
        "version_info": hashlib.sha256(content).hexdigest()[:16],
        "resources": list(resources),
    }


def _source(path: Path) -> Document:
    return {
        "resource_api_version": "V3",
        "path_config_source": {
            "path": str(path),
            "watched_directory": {"path": str(path.parent)},
        },
    }


def _address(host: str, port: int) -> Document:
    return {"socket_address": {"address": host, "port_value": port}}


def _listener(files: Files, host: str, port: int) -> Document:
    connection_manager = {
        "@type": f"{_FILTERS}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "users",
        "codec_type": "AUTO",
        "rds": {"route_config_name": ROUTES, "config_source": _source(files.routes)},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {
                    "@type": f"{_FILTERS}.http.router.v3.Router",
                    "suppress_envoy_headers": True,
                },
            }
        ],
        # No client is trusted with x-envoy-… headers, which would change timeouts and retries.
        "use_remote_address": True,
        "internal_address_config": {"cidr_ranges": [_NOBODY]},
        "stream_idle_timeout": _HOUR,
        "common_http_protocol_options": {"idle_timeout": _HOUR},
        "local_reply_config": _LOCAL_REPLIES,
    }
    return {
        "name": "users",
        "address": _address(host, port),
        # With it a second Envoy could listen on the same port, unseen.
        "enable_reuse_port": False,
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": connection_manager,
                    }
                ]
            }
        ],
    }


_LOCAL_REPLIES: Document = {
    "mappers": [
        {
            "filter": {
                "status_code_filter": {
                    "comparison": {
                        "op": "EQ",
                        "value": {"default_value": 503, "runtime_key": "canaryctl.unused"},
                    }
                }
            },
            "headers_to_add": [{"header": {"key": "retry-after", "value": "1"}}],
        }
    ],
    # The shape in which OpenAI's API, and so every engine here, tells an error.
    "body_format": {
        "json_format": {
            "error": {
                "message": "%LOCAL_REPLY_BODY%",
                "type": "router_error",
                "code": "%RESPONSE_CODE%",
            }
        }
    },
}


def _cluster(name: str, files: Files) -> Document:
    return {
        "@type": f"{_TYPE}.config.cluster.v3.Cluster",
        "name": name,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": _source(files.members(name))},
        "connect_timeout": "3s",
        "lb_policy": "LEAST_REQUEST",
        # Traffic never goes to a pool because another looks unwell.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        # Envoy's own limits (1024 requests, 3 retries at a time) would refuse requests.
        "circuit_breakers": {
            "thresholds": [
                {
                    "max_connections": _UNLIMITED,
                    "max_pending_requests": _UNLIMITED,
                    "max_requests": _UNLIMITED,
                    "max_retries": _UNLIMITED,
                }
            ]
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{_TYPE}.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http_protocol_options": {}},
                # Engines (uvicorn) close a connection idle for 5 s: close it before they do.
                "common_http_protocol_options": {"idle_timeout": "3s"},
            }
        },
    }


def _endpoint(pool: Pool, member: PoolMember) -> Document:
    return {
        "endpoint": {"address": _address(member.host, member.port)},
        "metadata": {
            "filter_metadata": {
                METADATA: {
                    "artifact": pool.artifact,
                    "digest": pool.digest,
                    "instance": member.instance,
                }
            }
        },
    }


def _weighted(pools: Sequence[Pool], session_header: str) -> Document:
    return {
        "route": {
            "weighted_clusters": {
                "clusters": [{"name": pool.name, "weight": pool.weight} for pool in pools],
                "use_hash_policy": True,
            },
            "hash_policy": [{"header": {"header_name": session_header}}],
            "timeout": "0s",
            "retry_policy": _RETRIES,
        }
    }


# Only what has no response yet is sent again. A hung engine is not given up here: only the
# progress of its other requests tells a hang from a long queue.
_RETRIES: Document = {
    "retry_on": "connect-failure,refused-stream,reset,reset-before-request,retriable-status-codes",
    # What an engine whose core has died answers, until its process ends: vLLM's 500, and 503.
    "retriable_status_codes": [500, 503],
    "num_retries": 2,
    "retry_back_off": {"base_interval": "0.005s", "max_interval": "0.05s"},
    "retry_priority": {
        "name": "envoy.retry_priorities.previous_priorities",
        "typed_config": {
            "@type": f"{_RETRY}.priority.previous_priorities.v3.PreviousPrioritiesConfig",
            "update_frequency": 1,
        },
    },
    "retry_host_predicate": [
        {
            "name": "envoy.retry_host_predicates.previous_hosts",
            "typed_config": {"@type": f"{_RETRY}.host.previous_hosts.v3.PreviousHostsPredicate"},
        }
    ],
    "host_selection_retry_max_attempts": 5,
}


def _nothing_serves(service: str) -> Document:
    return {
        "direct_response": {
            "status": 503,
            "body": {
                "inline_string": f"nothing serves {service}: no pool has weight; try again later"
            },
        }
    }
