"""Which worlds, which slowdowns, how often."""

from dataclasses import dataclass, replace

from benchmarks.gate_power.campaign import Campaign, Case
from benchmarks.gate_power.forms import EXACT
from benchmarks.gate_power.independent import LOOKS, NONE, Independent, Slowdown, Tokens
from benchmarks.gate_power.queues import Q60, QUEUES, Queue

EQUAL, AT_TOLERANCE, AT_MARGIN = "equal", "+10 %", "+33 %"
LATE = "+100 % after 30 min"
IID, IID_OWN, TOKENS = "iid", "iid, own history", "tokens"
ONE_HOUR = tuple(replace(queue, name=f"{queue.name}, one hour of history") for queue in QUEUES)
MARGINS = {"21 %": 0.21, "33 %": 0.33, "46 %": 0.46}


@dataclass(frozen=True, slots=True)
class Size:
    """Repetitions: of rates that must be small, of rates and medians that need not be as sharp,
    of the other judges, and of releases judged by the gate itself."""

    errors: int = 2000
    power: int = 1000
    judged: int = 300
    real: int = 200


def campaigns(size: Size, seed: int) -> list[Campaign]:
    worlds = [
        _independent(size, seed + 1),
        _independent_with_history(size, seed + 2),
        Campaign(
            Tokens(),
            (
                Case(EQUAL, NONE, size.errors),
                Case(AT_TOLERANCE, Slowdown(1.1), size.errors),
                Case("+20 %", Slowdown(1.2), size.judged),
            ),
            seed + 3,
        ),
    ]
    queues = [_queue(queue, size, seed + 4 + n) for n, queue in enumerate(QUEUES)]
    shorter = [_one_hour(queue, size, seed + 8 + n) for n, queue in enumerate(ONE_HOUR)]
    return [*worlds, *queues, *shorter]


def _independent(size: Size, seed: int) -> Campaign:
    """(A) where it is a theorem: φ = 1 is known."""

    def case(name: str, slowdown: Slowdown, repetitions: int, margin: float = 0.33) -> Case:
        return Case(name, slowdown, repetitions, EXACT, margin=margin)

    compared = (
        case(EQUAL, NONE, size.errors),
        case(AT_TOLERANCE, Slowdown(1.1), size.errors),
        case("+20 %", Slowdown(1.2), size.power),
        case("+50 %", Slowdown(1.5), size.power),
        case("+50 % of the tail", Slowdown(1.5, tail_only=True), size.power),
        case("+100 %", Slowdown(2.0), size.power),
    )
    return Campaign(
        Independent(),
        (
            *(replace(each, judged=size.judged) for each in compared),
            case(LATE, Slowdown(2.0, from_look=LOOKS // 2), size.power),
            case(AT_MARGIN, Slowdown(1.33), size.errors),
            *(
                case(f"equal, margin {name}", NONE, size.power, margin)
                for name, margin in MARGINS.items()
            ),
        ),
        seed,
    )


def _independent_with_history(size: Size, seed: int) -> Campaign:
    return Campaign(
        Independent(IID_OWN),
        (
            Case(EQUAL, NONE, size.errors),
            Case(AT_TOLERANCE, Slowdown(1.1), size.errors),
            Case("+50 %", Slowdown(1.5), size.power),
            Case("+100 %", Slowdown(2.0), size.power),
            Case(AT_MARGIN, Slowdown(1.33), size.power),
            Case("equal, no history", NONE, size.power, history=False),
            Case("+10 %, no history", Slowdown(1.1), size.power, history=False),
            Case("+50 %, no history", Slowdown(1.5), size.power, history=False),
            Case("+100 %, no history", Slowdown(2.0), size.power, history=False),
        ),
        seed,
    )


def _queue(queue: Queue, size: Size, seed: int) -> Campaign:
    judged = size.judged if queue is Q60 else 0
    return Campaign(
        queue,
        (
            Case(EQUAL, NONE, size.errors, judged=judged),
            Case(AT_TOLERANCE, Slowdown(1.1), size.errors, judged=judged),
            Case(AT_MARGIN, Slowdown(1.33), size.power),
            Case("+33 %, 1:1", Slowdown(1.33), size.power, baselines=1),
            Case("+50 %", Slowdown(1.5), size.power, judged=judged),
            Case("+100 %", Slowdown(2.0), size.power, judged=judged),
            Case("equal, φ = 1", NONE, size.judged, EXACT),
            Case("equal, no history", NONE, size.power, history=False),
            Case("+10 %, no history", Slowdown(1.1), size.power, history=False),
        ),
        seed,
    )


def _one_hour(queue: Queue, size: Size, seed: int) -> Campaign:
    """Where a block has to be longer than the history says."""
    return Campaign(
        queue,
        (
            Case(EQUAL, NONE, size.errors),
            Case(AT_TOLERANCE, Slowdown(1.1), size.errors),
            Case(AT_MARGIN, Slowdown(1.33), size.power),
            Case("+50 %", Slowdown(1.5), size.judged),
            Case("+100 %", Slowdown(2.0), size.judged),
        ),
        seed,
        history_hours=1,
    )
