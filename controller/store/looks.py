"""The looks of a release: on which terms it is judged, all that each look saw, and what every
gate made of it. Written with the decision that rests on them, and never changed."""

from collections.abc import Iterable, Iterator

from sqlalchemy import Connection, RowMapping, func, insert, select

from canaryctl.controller.model import LookRecord, Measurement
from canaryctl.controller.store import tables
from canaryctl.controller.store.base import Repository
from canaryctl.controller.store.codec import pack, result_document, result_of, unpack
from canaryctl.controller.store.columns import dumps, loads
from canaryctl.gates.looks import look_document, look_of
from canaryctl.gates.outcome import Outcome
from canaryctl.gates.terms import GateTerms, terms_document, terms_of

_PAGE = 50
_terms, _looks, _measurements = tables.gate_terms, tables.looks, tables.measurements


class Looks(Repository):
    """By release."""

    def gate_terms(self, release: str) -> GateTerms | None:
        """None: it was recorded by a version that kept none."""
        query = select(_terms.c.terms).where(_terms.c.release == release)
        with self._database.reading() as connection:
            found = connection.execute(query).scalar_one_or_none()
        return None if found is None else terms_of(found)

    def looks(self, release: str) -> Iterator[LookRecord]:
        """In order, a page at a time: no transaction stays open between pages."""
        last = 0
        while True:
            seqs = (_measurements.c.look > last, _measurements.c.look <= last + _PAGE)
            with self._database.reading() as connection:
                query = select(_looks).where(_looks.c.release == release, _looks.c.seq > last)
                rows = (
                    connection.execute(query.order_by(_looks.c.seq).limit(_PAGE)).mappings().all()
                )
                found = connection.execute(
                    select(_measurements)
                    .where(_measurements.c.release == release, *seqs)
                    .order_by(_measurements.c.look, _measurements.c.gate)
                ).mappings()
                by_look: dict[int, list[Measurement]] = {}
                for row in found:
                    by_look.setdefault(row["look"], []).append(_measurement_of(row))
            for row in rows:
                yield _look_of(row, by_look.get(row["seq"], ()))
            if len(rows) < _PAGE:
                return
            last = rows[-1]["seq"]


def write_terms(connection: Connection, release: str, terms: GateTerms) -> None:
    connection.execute(insert(_terms).values(release=release, terms=terms_document(terms)))


def write_look(connection: Connection, record: LookRecord) -> None:
    """The next look of its release, whatever number the record has."""
    last = connection.execute(
        select(func.max(_looks.c.seq)).where(_looks.c.release == record.release)
    ).scalar_one()
    seq = 1 if last is None else last + 1
    connection.execute(
        insert(_looks).values(
            release=record.release,
            seq=seq,
            at=record.at,
            outcome=record.outcome,
            promotable=record.promotable,
            look=pack(dumps(look_document(record.look))),
        )
    )
    if record.measurements:
        connection.execute(
            insert(_measurements),
            [
                {
                    "release": record.release,
                    "look": seq,
                    "gate": measurement.gate,
                    "outcome": measurement.result.outcome,
                    "result": pack(dumps(result_document(measurement.result))),
                    "state_digest": measurement.state_digest,
                }
                for measurement in record.measurements
            ],
        )


def _look_of(row: RowMapping, measurements: Iterable[Measurement]) -> LookRecord:
    return LookRecord(
        release=row["release"],
        seq=row["seq"],
        at=row["at"],
        look=look_of(loads(unpack(row["look"]))),
        outcome=Outcome(row["outcome"]),
        promotable=row["promotable"],
        measurements=tuple(measurements),
    )


def _measurement_of(row: RowMapping) -> Measurement:
    return Measurement(
        gate=row["gate"],
        result=result_of(loads(unpack(row["result"]))),
        state_digest=row["state_digest"],
    )
