"""What was seen and how gates stand: raw answers, faults, gate states.

Evidence and faults are facts of a moment, and never changed. A fault is added under the acting
controller's fence: one that was stopped meanwhile may have seen an engine stand still that did
not. Evidence and the gates' standing belong to a decision and are written by
:meth:`canaryctl.controller.store.releases.Releases.commit`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from sqlalchemy import Connection, delete, insert, select

from canaryctl.controller.model import Evidence, Fault, GateRecord, Lease
from canaryctl.controller.store import tables
from canaryctl.controller.store.base import Repository, check_fence
from canaryctl.controller.store.codec import (
    evidence_of,
    evidence_row,
    fault_of,
    gate_record_of,
    result_document,
)

_PAGE = 200
_evidence, _faults = tables.evidence, tables.faults
_records = tables.gate_records


class EvidenceLog(Repository):
    """By release."""

    def evidence(self, release: str) -> Iterator[Evidence]:
        """In the order it came, a page at a time: no transaction stays open between pages."""
        last = 0
        while True:
            with self._database.reading() as connection:
                rows = (
                    connection.execute(
                        select(_evidence)
                        .where(_evidence.c.release == release, _evidence.c.id > last)
                        .order_by(_evidence.c.id)
                        .limit(_PAGE)
                    )
                    .mappings()
                    .all()
                )
            yield from (evidence_of(row) for row in rows)
            if len(rows) < _PAGE:
                return
            last = rows[-1]["id"]

    def add_fault(self, fault: Fault, *, fence: Lease | None = None) -> bool:
        """True when it is new. The first sighting of a kind on an instance stands."""
        key = (
            _faults.c.release == fault.release,
            _faults.c.instance == fault.instance,
            _faults.c.kind == fault.kind,
        )
        with self._added(fence, fault.at) as connection:
            if connection.execute(select(_faults.c.kind).where(*key)).one_or_none() is not None:
                return False
            connection.execute(
                insert(_faults).values(
                    release=fault.release,
                    instance=fault.instance,
                    kind=fault.kind,
                    at=fault.at,
                    detail=fault.detail,
                )
            )
        return True

    def faults(self, release: str) -> tuple[Fault, ...]:
        """In the order of their times."""
        query = (
            select(_faults)
            .where(_faults.c.release == release)
            .order_by(_faults.c.at, _faults.c.instance, _faults.c.kind)
        )
        with self._database.reading() as connection:
            return tuple(fault_of(row) for row in connection.execute(query).mappings())

    @contextmanager
    def _added(self, fence: Lease | None, at: datetime) -> Iterator[Connection]:
        """``fence`` None: for whoever is alone."""
        with self._database.writing() as connection:
            if fence is not None:
                check_fence(connection, fence, at)
            yield connection

    def gate_records(self, release: str) -> tuple[GateRecord, ...]:
        """Each gate's state to resume from and latest result, by name."""
        query = select(_records).where(_records.c.release == release).order_by(_records.c.gate)
        with self._database.reading() as connection:
            return tuple(gate_record_of(row) for row in connection.execute(query).mappings())


def write_evidence(connection: Connection, evidence: Sequence[Evidence]) -> None:
    if evidence:
        connection.execute(insert(_evidence), [evidence_row(item) for item in evidence])


def write_gates(connection: Connection, release: str, gates: Sequence[GateRecord]) -> None:
    """Each gate's standing in place of its earlier one."""
    if not gates:
        return
    connection.execute(
        delete(_records).where(
            _records.c.release == release, _records.c.gate.in_([gate.gate for gate in gates])
        )
    )
    connection.execute(
        insert(_records),
        [
            {
                "release": release,
                "gate": gate.gate,
                "at": gate.at,
                "outcome": gate.result.outcome,
                "state": dict(gate.state),
                "result": result_document(gate.result),
            }
            for gate in gates
        ],
    )
