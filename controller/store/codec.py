"""Rows to values and back. Nothing here talks to a database."""

import zlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping

from canaryctl.controller.artifact.schema import ArtifactDocument
from canaryctl.controller.model import (
    Artifact,
    Evidence,
    Fault,
    GateRecord,
    GpuLease,
    Instance,
    InstanceState,
    Lease,
    OperatorRequest,
    Release,
    ReleaseEvent,
    ReleaseKind,
    Service,
    Verb,
)
from canaryctl.controller.states import Phase, Trigger
from canaryctl.gates.outcome import GateResult, Outcome
from canaryctl.runtimes.engines.base import EngineFault, Stage
from canaryctl.runtimes.placements.base import Handle
from canaryctl.runtimes.spec import RuntimeSpec

Row = dict[str, Any]


def artifact_of(row: RowMapping) -> Artifact:
    return Artifact(
        digest=row["digest"],
        name=row["name"],
        version=row["version"],
        service=row["service"],
        runtime=RuntimeSpec.model_validate(row["runtime"]),
        created_at=row["created_at"],
        eager_of=row["eager_of"],
    )


def service_of(row: RowMapping) -> Service:
    """From services, left-joined with stable."""
    return Service(
        name=row["name"],
        port=row["port"],
        created_at=row["created_at"],
        stable_digest=row["digest"],
        stable_pool=row["pool"],
        stable_replicas=1 if row["replicas"] is None else row["replicas"],
        stable_release=row["release"],
    )


def release_row(release: Release) -> Row:
    """What is written once, when the release is created; with :func:`progress_row`, all of it."""
    return {
        "id": release.id,
        "service": release.service,
        "kind": release.kind,
        "digest": release.digest,
        "document": release.document.model_dump(mode="json"),
        "created_at": release.created_at,
    }


def progress_row(release: Release) -> Row:
    """What changes while the release goes on."""
    return {
        "phase": release.phase,
        "revision": release.revision,
        "phase_at": release.phase_at,
        "deadline_at": release.deadline_at,
        "previous_digest": release.previous_digest,
        "previous_pool": release.previous_pool,
        "previous_replicas": release.previous_replicas,
        "step": release.step,
        "step_at": release.step_at,
        "weight": release.weight,
        "reason": release.reason,
        "rollback_target": release.rollback_target,
        "hold": release.hold,
        "finished_at": release.finished_at,
    }


def release_of(row: RowMapping) -> Release:
    return Release(
        id=row["id"],
        service=row["service"],
        kind=ReleaseKind(row["kind"]),
        digest=row["digest"],
        document=ArtifactDocument.model_validate(row["document"]),
        phase=Phase(row["phase"]),
        revision=row["revision"],
        created_at=row["created_at"],
        phase_at=row["phase_at"],
        deadline_at=row["deadline_at"],
        previous_digest=row["previous_digest"],
        previous_pool=row["previous_pool"],
        previous_replicas=row["previous_replicas"],
        step=row["step"],
        step_at=row["step_at"],
        weight=row["weight"],
        reason=row["reason"],
        rollback_target=row["rollback_target"],
        hold=row["hold"],
        finished_at=row["finished_at"],
    )


def event_row(event: ReleaseEvent) -> Row:
    return {
        "release": event.release,
        "seq": event.seq,
        "at": event.at,
        "kind": event.kind,
        "message": event.message,
        "from_phase": event.from_phase,
        "to_phase": event.to_phase,
        "trigger": event.trigger,
        "actor": event.actor,
        "data": dict(event.data),
    }


def event_of(row: RowMapping) -> ReleaseEvent:
    return ReleaseEvent(
        release=row["release"],
        seq=row["seq"],
        at=row["at"],
        kind=row["kind"],
        message=row["message"],
        from_phase=None if row["from_phase"] is None else Phase(row["from_phase"]),
        to_phase=None if row["to_phase"] is None else Phase(row["to_phase"]),
        trigger=None if row["trigger"] is None else Trigger(row["trigger"]),
        actor=row["actor"],
        data=row["data"],
    )


def request_of(row: RowMapping) -> OperatorRequest:
    return OperatorRequest(
        id=row["id"],
        release=row["release"],
        verb=Verb(row["verb"]),
        actor=row["actor"],
        reason=row["reason"],
        at=row["at"],
        answered_at=row["answered_at"],
        answer=row["answer"],
    )


def instance_row(instance: Instance) -> Row:
    return {
        "id": instance.id,
        "service": instance.service,
        "pool": instance.pool,
        "digest": instance.digest,
        "created_at": instance.created_at,
        "gpus": list(instance.gpus),
    }


def condition_row(instance: Instance) -> Row:
    """What changes while the instance lives."""
    return {
        "state": instance.state,
        "port": instance.port,
        "handle": None if instance.handle is None else _handle_document(instance.handle),
        "stages": {stage.value: at.isoformat() for stage, at in instance.stages.items()},
        "facts": dict(instance.facts),
        "exit_code": instance.exit_code,
        "ended_at": instance.ended_at,
        "stop_at": instance.stop_at,
        "restarts": instance.restarts,
        "not_before": instance.not_before,
        "reason": instance.reason,
    }


def instance_of(row: RowMapping) -> Instance:
    stages = {Stage(name): datetime.fromisoformat(at) for name, at in row["stages"].items()}
    return Instance(
        id=row["id"],
        service=row["service"],
        pool=row["pool"],
        digest=row["digest"],
        state=InstanceState(row["state"]),
        created_at=row["created_at"],
        port=row["port"],
        gpus=tuple(row["gpus"]),
        handle=None if row["handle"] is None else Handle(**row["handle"]),
        stages=stages,
        facts=row["facts"],
        exit_code=row["exit_code"],
        ended_at=row["ended_at"],
        stop_at=row["stop_at"],
        restarts=row["restarts"],
        not_before=row["not_before"],
        reason=row["reason"],
    )


def _handle_document(handle: Handle) -> Row:
    return {
        "instance": handle.instance,
        "digest": handle.digest,
        "pid": handle.pid,
        "started_at": handle.started_at,
        "port": handle.port,
        "log_path": handle.log_path,
    }


def gpu_lease_of(row: RowMapping) -> GpuLease:
    return GpuLease(
        inventory=row["inventory"],
        gpu=row["gpu"],
        instance=row["instance"],
        fraction=row["fraction"],
        shared=row["shared"],
    )


def result_document(result: GateResult) -> Row:
    return {
        "name": result.name,
        "outcome": result.outcome.value,
        "reason": result.reason,
        "value": result.value,
        "baseline": result.baseline,
        "limit": result.limit,
        "samples": result.samples,
        "needed": result.needed,
        "no_harm": result.no_harm,
        "valid_looks": result.valid_looks,
        "details": dict(result.details),
    }


def result_of(document: Mapping[str, Any]) -> GateResult:
    return GateResult(**{**document, "outcome": Outcome(document["outcome"])})


def gate_record_of(row: RowMapping) -> GateRecord:
    return GateRecord(
        release=row["release"],
        gate=row["gate"],
        at=row["at"],
        state=row["state"],
        result=result_of(row["result"]),
    )


def fault_of(row: RowMapping) -> Fault:
    return Fault(
        release=row["release"],
        instance=row["instance"],
        kind=EngineFault(row["kind"]),
        at=row["at"],
        detail=row["detail"],
    )


def pack(raw: str) -> bytes:
    return zlib.compress(raw.encode())


def unpack(packed: bytes) -> str:
    return zlib.decompress(packed).decode()


def evidence_row(evidence: Evidence) -> Row:
    return {
        "release": evidence.release,
        "at": evidence.at,
        "instance": evidence.instance,
        "source": evidence.source,
        "raw": pack(evidence.raw),
        "values": evidence.values,
    }


def evidence_of(row: RowMapping) -> Evidence:
    return Evidence(
        release=row["release"],
        at=row["at"],
        instance=row["instance"],
        source=row["source"],
        raw=unpack(row["raw"]),
        values=row["values"],
    )


def lease_of(row: RowMapping) -> Lease:
    return Lease(
        name=row["name"],
        holder=row["holder"],
        token=row["token"],
        expires_at=row["expires_at"],
    )
