"""The composition root: the one place that names concrete adapters."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache

from canaryctl.common.clock import Clock, SystemClock
from canaryctl.common.errors import InputError
from canaryctl.controller.artifact.schema import ArtifactDocument
from canaryctl.controller.baseline.engines import StageEngines
from canaryctl.controller.baseline.leftovers import only_run
from canaryctl.controller.catalog import Catalog
from canaryctl.controller.discovery import TargetsFile, judged_labels, targets_path
from canaryctl.controller.judge import Judge
from canaryctl.controller.loads import StepLoads
from canaryctl.controller.loop import LeasedService, holder_name
from canaryctl.controller.memory import predicted
from canaryctl.controller.model import GpuClaim, GpuLease, Instance, InstanceState, Release
from canaryctl.controller.observe import Observer
from canaryctl.controller.parity import ParityWatch
from canaryctl.controller.plan import make_plan
from canaryctl.controller.reconcile import Reconciler
from canaryctl.controller.recording import Recorder
from canaryctl.controller.room import Arm, shortage, staying
from canaryctl.controller.rungs import rungs
from canaryctl.controller.saturation import SaturationWatch
from canaryctl.controller.service import ServiceController, stage_deadlines
from canaryctl.controller.settings import Settings
from canaryctl.controller.sources import Sources
from canaryctl.controller.store import Store, open_store
from canaryctl.controller.store.gpus import Occupant, pick
from canaryctl.controller.submit import Submitter
from canaryctl.controller.survey import Surveyor
from canaryctl.controller.view import InstanceView, View
from canaryctl.gates.sources.scrape import ScrapeSource
from canaryctl.runtimes.engines.base import Engine
from canaryctl.runtimes.engines.registry import DISTRIBUTIONS, engine
from canaryctl.runtimes.machine import (
    Machine,
    inspect_installation,
    inspect_machine,
    simulated_machine,
)
from canaryctl.runtimes.memory_budget import Budget
from canaryctl.runtimes.placements.registry import placement
from canaryctl.runtimes.ports import free_ports
from canaryctl.runtimes.preflight import preflight
from canaryctl.runtimes.routers.base import Router
from canaryctl.runtimes.routers.envoy import EnvoyRouter
from canaryctl.runtimes.spec import RuntimeSpec

WORKERS = 16
"""Threads that wait for engines: each look at an instance waits at most half a second."""

RUN_SCRAPE_TIMEOUT_S = 10.0
"""Between the runs of a baseline nobody waits for a look."""

IDLE_GPU_BYTES = 2**30
"""What a GPU has in use that nobody uses, at most: its driver and a monitor may hold some hundred
MiB, and an engine's weights and KV cache are more."""


@dataclass(frozen=True, slots=True)
class App:
    """Everything a command needs, wired once."""

    settings: Settings
    clock: Clock
    store: Store
    submitter: Submitter
    router: Router
    recorder: Recorder
    controller: Callable[[str], LeasedService]
    close: Callable[[], None]


def compose(settings: Settings, clock: Clock | None = None) -> App:
    """Wire the adapters that the settings name."""
    clock = clock or SystemClock()
    store = open_store(settings)
    catalog = Catalog(store, engine)
    place = placement("process", settings.state_dir)
    route = EnvoyRouter(settings.state_dir, envoy=settings.envoy, host=settings.host)
    sources = Sources(settings.prometheus)
    executor = ThreadPoolExecutor(WORKERS, thread_name_prefix="look")
    holder = holder_name()
    claims = _claims(settings)

    def address(instance: Instance) -> str:
        if instance.handle is None:
            raise AssertionError(f"{instance.id} serves without a handle")
        return place.base_url(instance.handle)

    def page(instance: Instance) -> str:
        return address(instance) + metrics_path(instance.digest)

    def metrics_path(digest: str) -> str:
        return catalog.engine(digest).metrics_path()

    def metrics_url(member: InstanceView) -> str:
        return page(member.instance)

    def checked(release: Release, view: View) -> tuple[str, ...]:
        found = startable(release.document.runtime, catalog.engine(release.digest))
        unjudged = sources.fault(release)
        return (
            *found,
            *((unjudged,) if unjudged else ()),
            *_rung_faults(release, view),
            *fresh_faults(release, view),
        )

    def startable(runtime: RuntimeSpec, adapter: Engine) -> tuple[str, ...]:
        names = DISTRIBUTIONS.get(adapter.name, ())
        # Only the interpreter is asked: nothing of this launch is started.
        launch = adapter.launch(runtime, host=settings.host, port=0)
        return preflight(
            runtime,
            adapter,
            _machine(adapter, settings),
            inspect_installation(launch, (*names, "torch")),
            distributions=names,
            memory=predicted(runtime, adapter, _machine(adapter, settings)),
        ).faults

    def fresh_faults(release: Release, view: View) -> tuple[str, ...]:
        """A fresh baseline starts the stable artifact anew, beside the canary and the stable."""
        plan = make_plan(release)
        if not plan.fresh_baseline or release.previous_digest is None:
            return ()
        stable = store.artifact(release.previous_digest).runtime
        engine_of = catalog.engine(release.digest), catalog.engine(release.previous_digest)
        largest = plan.steps[-1]
        arms = (
            Arm("canary", largest.canary_replicas, claims(engine_of[0], release.document.runtime)),
            Arm("baseline", largest.baseline_replicas, claims(engine_of[1], stable)),
        )
        staying_pools = {release.pool, release.fresh_pool, release.previous_pool}
        leaving = view.pools.keys() - staying_pools
        held = staying(store.leased_gpus(), store.instances(live_only=True), leaving)
        missing = shortage(arms, held)
        return (
            *(f"the fresh baseline: {fault}" for fault in startable(stable, engine_of[1])),
            *((missing,) if missing else ()),
        )

    def controller(service: str) -> ServiceController:
        observer = Observer(catalog, place, sources.scrape, executor, stage_deadlines(store))
        parity = ParityWatch(catalog, lambda member: address(member.instance))
        saturation = SaturationWatch(
            catalog, observer.read, lambda member: address(member.instance)
        )
        judge = Judge(
            store,
            sources.of,
            catalog,
            metrics_url,
            judged_labels,
            executor,
            parity,
            saturation,
        )
        return ServiceController(
            service,
            store=store,
            catalog=catalog,
            observer=observer,
            judge=judge,
            reconciler=Reconciler(store, catalog, place, route, claims, settings.host),
            router=route,
            loads=StepLoads(settings.state_dir / "loads"),
            preflight=checked,
            targets=TargetsFile(
                targets_path(settings.state_dir), store, place.base_url, metrics_path
            ),
        )

    def leased(service: str) -> LeasedService:
        return LeasedService(service, lambda: controller(service), store, clock, holder)

    def close() -> None:
        executor.shutdown(wait=False, cancel_futures=True)
        store.close()

    ports = settings.router_ports
    router_port = place.free_port if ports is None else free_ports(ports, settings.host)
    surveyor = Surveyor(store, sources.of, catalog, page, judged_labels, executor, clock)
    submitter = Submitter(store, engine, router_port, surveyor.survey)
    recorder = Recorder(store, catalog, sources.scrape, page, executor)
    return App(settings, clock, store, submitter, route, recorder, leased, close)


@contextmanager
def stage_engines(
    app: App, document: ArtifactDocument, *, pool: str, alone: bool = False
) -> Iterator[StageEngines]:
    """Engines of ``document`` for a baseline run or a calibration (``pool``), beside whatever the
    services run. What their machine or installation lacks is an InputError before any is started.
    ``alone``: on GPUs that nothing else uses, whatever the artifact shares."""
    settings, adapter = app.settings, engine(document.runtime.engine.name)
    names = DISTRIBUTIONS.get(adapter.name, ())
    launch = adapter.launch(document.runtime, host=settings.host, port=0)
    found = preflight(
        document.runtime,
        adapter,
        _machine(adapter, settings),
        inspect_installation(launch, (*names, "torch")),
        distributions=names,
        memory=predicted(document.runtime, adapter, _machine(adapter, settings)),
    )
    if not found.ok:
        raise InputError("\n".join(found.faults))

    claims = _claims(settings)
    with (
        closing(ScrapeSource(RUN_SCRAPE_TIMEOUT_S)) as source,
        ThreadPoolExecutor(WORKERS, thread_name_prefix="look") as executor,
        StageEngines(
            document,
            adapter,
            pool=pool,
            placement=placement("process", settings.state_dir),
            source=source,
            executor=executor,
            clock=app.clock,
            host=settings.host,
            state_dir=settings.state_dir,
            claim=_alone(claims) if alone else claims,
            occupants=lambda: _occupants(app.store),
            strangers=_strangers if alone and not adapter.simulated else tuple,
        ) as engines,
    ):
        yield engines


@contextmanager
def lone_gpu(app: App) -> Iterator[tuple[int, ...]]:
    """A GPU of this machine that nothing uses, for a measurement without an engine, while no
    baseline run or calibration goes on; NoGpuError says what is in the way. Empty: there is none
    at all."""
    with only_run(app.settings.state_dir):
        candidates = tuple(gpu.index for gpu in _local_machine().gpus)
        claim = GpuClaim(
            "local", candidates, count=min(1, len(candidates)), fraction=1, share=False
        )
        there = [o for o in _occupants(app.store) if o.lease.inventory == claim.inventory]
        yield pick(claim, [*there, *_strangers()])


def _occupants(store: Store) -> tuple[Occupant, ...]:
    """The services' engines, on the GPUs that they hold."""
    states = {i.id: i.state for i in store.instances(live_only=True)}
    return tuple(
        Occupant(lease, states[lease.instance])
        for lease in store.leased_gpus()
        if lease.instance in states
    )


def _strangers() -> tuple[Occupant, ...]:
    """Whoever uses a GPU of this machine now, by what is in use of its memory. Of one whose driver
    does not say that, nothing is known."""
    return tuple(
        Occupant(
            GpuLease(
                "local",
                gpu.index,
                f"other processes, {gpu.used_bytes >> 20} MiB in use",
                fraction=1.0,
                shared=True,
            ),
            InstanceState.READY,
        )
        for gpu in inspect_machine().gpus
        if gpu.used_bytes is not None and gpu.used_bytes > IDLE_GPU_BYTES
    )


def _rung_faults(release: Release, view: View) -> tuple[str, ...]:
    """A release that could not be rolled back is not begun."""
    known = rungs(release, view)
    if release.previous_pool is None or any(rung.healthy for rung in known):
        return ()
    if any(rung.pool == release.eager_pool for rung in known):
        return ()
    return (
        (
            f"no rollback rung is healthy: {release.previous_pool} is not serving with "
            f"{release.previous_replicas} instances and there is no eager variant"
        ),
    )


def memory_budget(runtime: RuntimeSpec, settings: Settings) -> Budget | None:
    """What is predicted of the memory of one GPU of this machine; None without one."""
    adapter = engine(runtime.engine.name)
    return predicted(runtime, adapter, _machine(adapter, settings))


@cache
def _local_machine() -> Machine:
    return inspect_machine()


def _machine(adapter: Engine, settings: Settings) -> Machine:
    return simulated_machine(settings.simulated_gpus) if adapter.simulated else _local_machine()


def _claims(settings: Settings) -> Callable[[Engine, RuntimeSpec], GpuClaim | None]:
    def claim(adapter: Engine, runtime: RuntimeSpec) -> GpuClaim | None:
        """A tensor-parallel set of GPUs is leased as one."""
        if runtime.gpu.count == 0:
            return None
        machine = _machine(adapter, settings)
        return GpuClaim(
            inventory="simulated" if adapter.simulated else "local",
            candidates=tuple(
                gpu.index
                for gpu in machine.gpus
                if (runtime.gpu.model or "").lower() in gpu.name.lower()
            ),
            count=runtime.gpu.count,
            fraction=runtime.gpu.memory_fraction,
            share=runtime.gpu.share,
        )

    return claim


def _alone(
    claims: Callable[[Engine, RuntimeSpec], GpuClaim | None],
) -> Callable[[Engine, RuntimeSpec], GpuClaim | None]:
    """The same GPUs, each as a whole."""

    def claim(adapter: Engine, runtime: RuntimeSpec) -> GpuClaim | None:
        found = claims(adapter, runtime)
        return found and replace(found, fraction=1.0, share=False)

    return claim
