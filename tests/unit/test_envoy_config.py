"""What Envoy is told, and how its own word is read: pure documents."""

import json
from pathlib import Path
from typing import Any

import pytest

from canaryctl.common.errors import InputError, UnknownNameError
from canaryctl.runtimes.routers import envoy_config as config
from canaryctl.runtimes.routers import envoy_readback as readback
from canaryctl.runtimes.routers.base import Pool, PoolMember, RouteTable
from canaryctl.runtimes.routers.registry import router

FILES = config.Files(Path("/state/routers/chat"))
STABLE = Pool("stable", "chat@1", "sha256:1", (PoolMember("s-0", "127.0.0.1", 9001),), 90)
CANARY = Pool("canary", "chat@2", "sha256:2", (PoolMember("c-0", "127.0.0.1", 9002),), 10, "stable")
TABLE = RouteTable("chat", (STABLE, CANARY))


def route_of(table: RouteTable) -> dict[str, Any]:
    [configuration] = config.routes(table, session_header="x-session-id")
    [host] = configuration["virtual_hosts"]
    [route] = host["routes"]
    assert isinstance(route, dict)
    return route


def dump_of(table: RouteTable, version: str = "v1") -> dict[str, Any]:
    """The shape of Envoy 1.40's config dump."""
    prefix = "type.googleapis.com/envoy.admin.v3"
    return {
        "configs": [
            {
                "@type": f"{prefix}.ClustersConfigDump",
                "version_info": version,
                "dynamic_active_clusters": [
                    {"cluster": cluster}
                    for cluster in config.clusters([p.name for p in table.pools], FILES)
                ],
            },
            {
                "@type": f"{prefix}.EndpointsConfigDump",
                "dynamic_endpoint_configs": [
                    {"endpoint_config": config.members(pool, table)[0]} for pool in table.pools
                ],
            },
            {
                "@type": f"{prefix}.RoutesConfigDump",
                "dynamic_route_configs": [
                    {
                        "version_info": version,
                        "route_config": config.routes(table, session_header="x-session-id")[0],
                    }
                ],
            },
        ]
    }


def test_pools_are_weighted_in_an_order_that_never_changes() -> None:
    turned = RouteTable("chat", (CANARY, STABLE))
    for table in (TABLE, turned):
        weighted = route_of(table)["route"]["weighted_clusters"]
        assert weighted["clusters"] == [
            {"name": "canary", "weight": 10},
            {"name": "stable", "weight": 90},
        ]
        assert weighted["use_hash_policy"] is True


def test_the_session_header_is_configurable() -> None:
    [configuration] = config.routes(TABLE, session_header="x-user")
    route = configuration["virtual_hosts"][0]["routes"][0]["route"]
    assert route["hash_policy"] == [{"header": {"header_name": "x-user"}}]


def test_streams_have_no_time_limit_and_a_hang_is_no_reason_to_retry() -> None:
    route = route_of(TABLE)["route"]
    assert route["timeout"] == "0s"
    assert "per_try_timeout" not in route["retry_policy"]
    assert "per_try_idle_timeout" not in route["retry_policy"]


def test_without_weight_the_answer_is_direct_and_names_the_service() -> None:
    idle = RouteTable("chat", (Pool("stable", "chat@1", "sha256:1", (), 0),))
    route = route_of(idle)
    assert "route" not in route
    assert route["direct_response"]["status"] == 503
    assert "chat" in route["direct_response"]["body"]["inline_string"]


def test_the_fallback_stands_behind_the_pool_and_keeps_its_own_name() -> None:
    [assignment] = config.members(CANARY, TABLE)
    assert readback.members_of(assignment) == {
        (0, "127.0.0.1:9002", "chat@2", "sha256:2", "c-0"),
        (1, "127.0.0.1:9001", "chat@1", "sha256:1", "s-0"),
    }
    [alone] = config.members(STABLE, TABLE)
    assert {member[0] for member in readback.members_of(alone)} == {0}


def test_an_unknown_fallback_names_pool_and_choices() -> None:
    lost = Pool("canary", "chat@2", "sha256:2", (), 100, "gone")
    with pytest.raises(InputError, match="canary of chat falls back to 'gone'"):
        config.members(lost, RouteTable("chat", (lost,)))


def test_versions_follow_the_content_alone() -> None:
    one = config.versioned(config.clusters(["b", "a"], FILES))
    assert one == config.versioned(config.clusters(["a", "b"], FILES))
    assert one["version_info"] != config.versioned(config.clusters(["a"], FILES))["version_info"]


def test_names_of_pools_never_leave_their_directory() -> None:
    path = FILES.members("../../etc/passwd")
    assert path.parent == FILES.members_directory


def test_the_admin_interface_is_local_and_cannot_end_envoy() -> None:
    document = config.bootstrap("chat", FILES, host="0.0.0.0", port=8000, admin_port=9901)  # noqa: S104
    assert readback.ports(document) == (8000, 9901)
    assert document["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"
    allowed = json.dumps(document["admin"]["allow_paths"])
    assert "/config_dump" in allowed
    assert "quitquitquit" not in allowed
    assert "healthcheck" not in allowed


def test_the_read_back_tells_every_pool_also_those_without_weight() -> None:
    state = readback.in_force(dump_of(TABLE))
    assert state.weights == {"canary": 10, "stable": 90}
    assert (state.routes_version, state.clusters_version) == ("v1", "v1")
    assert set(state.members) == {"canary", "stable"}
    idle = RouteTable(
        "chat", (Pool("a", "x@1", "sha256:1", (), 0), Pool("b", "x@2", "sha256:2", (), 0))
    )
    assert readback.in_force(dump_of(idle)).weights == {"a": 0, "b": 0}


def test_a_dump_that_says_nothing_is_unknown_and_not_zero() -> None:
    dumps: tuple[dict[str, Any], ...] = (
        {},
        {"configs": []},
        {"configs": [{"@type": "x.RoutesConfigDump"}]},
    )
    for dump in dumps:
        state = readback.in_force(dump)
        assert state.weights is None
        assert state.routes_version is None
        assert state.members == {}


def test_a_cluster_still_warming_has_no_members_yet() -> None:
    dump = dump_of(TABLE)
    dump["configs"][0]["dynamic_active_clusters"].pop(0)
    assert set(readback.in_force(dump).members) == {"stable"}


def test_routers_are_known_by_name(tmp_path: Path) -> None:
    assert router("envoy", tmp_path).name == "envoy"
    with pytest.raises(UnknownNameError, match="unknown router 'nginx'; one of: envoy"):
        router("nginx", tmp_path)
