"""What people asked for: recorded at once, answered by whoever holds the lease."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import Connection, insert, select, update

from canaryctl.controller.errors import FinalReleaseError, NotFoundError, StaleWriteError
from canaryctl.controller.model import OperatorRequest, Verb
from canaryctl.controller.states import FINAL
from canaryctl.controller.store import tables
from canaryctl.controller.store.base import Repository
from canaryctl.controller.store.codec import request_of

_requests, _releases = tables.requests, tables.releases


class Requests(Repository):
    """Requests by release, oldest first."""

    def add_request(
        self, release: str, verb: Verb, actor: str, reason: str, now: datetime
    ) -> OperatorRequest:
        """FinalReleaseError when the release has ended: nobody would ever answer."""
        with self._database.writing() as connection:
            phase = connection.execute(
                select(_releases.c.phase).where(_releases.c.id == release)
            ).scalar_one_or_none()
            if phase is None:
                raise NotFoundError(f"no release {release!r} (`canaryctl history` shows them)")
            if phase in FINAL:
                raise FinalReleaseError(
                    f"cannot {verb.value} release {release}: it is {phase}, which is final"
                )
            number = connection.execute(
                insert(_requests)
                .values(release=release, verb=verb, actor=actor, reason=reason, at=now)
                .returning(_requests.c.id)
            ).scalar_one()
        return OperatorRequest(number, release, verb, actor, reason, now)

    def pending_requests(self, release: str) -> tuple[OperatorRequest, ...]:
        """Those without an answer."""
        return self._select(release, pending=True)

    def requests(self, release: str) -> tuple[OperatorRequest, ...]:
        return self._select(release, pending=False)

    def _select(self, release: str, *, pending: bool) -> tuple[OperatorRequest, ...]:
        query = select(_requests).where(_requests.c.release == release).order_by(_requests.c.id)
        if pending:
            query = query.where(_requests.c.answered_at.is_(None))
        with self._database.reading() as connection:
            return tuple(request_of(row) for row in connection.execute(query).mappings())


def answer_requests(
    connection: Connection, release: str, answers: Mapping[int, str], now: datetime
) -> None:
    """StaleWriteError when one of them has an answer already or is not of this release."""
    for number, answer in answers.items():
        answered = connection.execute(
            update(_requests)
            .where(
                _requests.c.id == number,
                _requests.c.release == release,
                _requests.c.answered_at.is_(None),
            )
            .values(answered_at=now, answer=answer)
        )
        if answered.rowcount != 1:
            raise StaleWriteError(
                f"request {number} is not a pending request of release {release}; read them again"
            )


def answer_the_rest(connection: Connection, release: str, answer: str, now: datetime) -> None:
    """So that nobody waits for an answer of a release that has ended."""
    connection.execute(
        update(_requests)
        .where(_requests.c.release == release, _requests.c.answered_at.is_(None))
        .values(answered_at=now, answer=answer)
    )
