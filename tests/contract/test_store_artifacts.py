"""Artifacts in the store: written once, found by what people type."""

from dataclasses import replace

import pytest

from canaryctl.controller.errors import AmbiguousRefError, ImmutableArtifactError, NotFoundError
from canaryctl.controller.store import Store
from tests.support.stored import DIGESTS, LATER, NOW, artifact


def test_an_artifact_comes_back_as_it_was(store: Store) -> None:
    wanted = artifact(eager_of=None)
    assert store.register_artifact(wanted) == wanted
    assert store.artifact("chat-small@1") == wanted
    assert store.artifacts() == store.artifacts("chat") == (wanted,)
    assert store.artifacts("other") == ()


def test_registering_again_returns_the_first(store: Store) -> None:
    store.register_artifact(artifact())
    assert store.register_artifact(artifact(created_at=LATER)).created_at == NOW
    assert len(store.artifacts()) == 1


def test_a_name_and_version_stand_for_one_runtime(store: Store) -> None:
    store.register_artifact(artifact("a"))
    with pytest.raises(ImmutableArtifactError, match="a new version"):
        store.register_artifact(artifact("b"))
    with pytest.raises(ImmutableArtifactError, match="for the service chat"):
        store.register_artifact(artifact("a", service="other"))
    assert store.artifacts() == (artifact("a"),)


def test_one_runtime_under_several_names(store: Store) -> None:
    first = store.register_artifact(artifact("a"))
    second = store.register_artifact(artifact("a", name="twin", service="other"))
    assert store.artifact("twin@1") == second
    assert store.artifact(DIGESTS["a"]) == first
    assert store.artifact(DIGESTS["a"], "other") == second


def test_artifacts_are_found_by_what_people_type(store: Store) -> None:
    one = store.register_artifact(artifact("a"))
    two = store.register_artifact(artifact("b", version="2"))
    eager = store.register_artifact(artifact("c", version="2-eager", eager_of=DIGESTS["b"]))
    cafe = store.register_artifact(artifact("d", name="cafe", version="1"))
    near = replace(artifact("e", name="near"), digest=DIGESTS["a"][:-1] + "0")
    store.register_artifact(near)
    assert store.artifact("chat-small") == two  # the latest that was not derived
    assert store.artifact("chat-small@1") == one
    assert store.artifact("chat-small@2-eager") == eager
    assert store.artifact("sha256:bbbb") == store.artifact("bbbbbb") == two
    assert store.artifact("cafe") == cafe  # a name before a digest
    assert store.artifact(DIGESTS["a"]) == one
    with pytest.raises(AmbiguousRefError, match="near@1"):
        store.artifact("aaaa")
    for nothing in ("", "bbb", "sha256:", "chat%", "chat-small@3", "sha256:ffff"):
        with pytest.raises(NotFoundError):
            store.artifact(nothing)
    with pytest.raises(NotFoundError, match="of the service other"):
        store.artifact("chat-small", "other")
