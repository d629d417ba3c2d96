"""Real vLLM on one GPU, released by canaryctl: what graphs bring, and what each bad runtime costs.

    python -m benchmarks.h200 --out OUT              on a host with an H200 and vLLM 0.25.1
    python -m benchmarks.h200 --cpu VENV --out OUT   the rehearsal, with CPU vLLM and no graphs

Steps, each recorded whatever becomes of the others: ``first`` (eager becomes stable), ``graphs``
(measured beside eager, then promoted over it), ``nine`` (a grid that ends below the load, rolled
back by a gate), ``oom`` (no memory left to capture graphs in, rolled back before any traffic),
``measured`` (the nine sizes measured beyond their grid), then ``nine`` again. Engines share the
GPU by memory fraction, so that those compared are measured in turns within seconds.
"""

import functools
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import _h200_artifacts as artifacts
from benchmarks._h200_client import over_repeats, run_cell
from benchmarks._h200_options import Options, parse
from benchmarks._h200_releases import Canaryctl
from benchmarks._h200_table import page
from canaryctl.runtimes.machine import inspect_machine

ROOT = Path(__file__).resolve().parents[1]
GIB = 2**30
EXPECTED_S = {"first": 150, "graphs": 330, "oom": 140, "measured": 230}
NINE_S = 150
CAPTURING = "Capturing CUDA graphs"
CAPTURED = "Graph capturing finished"


class Bench:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.began = time.monotonic()
        self.state = options.work / "state"
        self.files = options.work / "artifacts"
        for folder in (options.out, options.work, self.files):
            folder.mkdir(parents=True, exist_ok=True)
        artifacts.write_loads(self.files, gpu=options.cpu is None)
        self.cli = Canaryctl(self.state, options.out)
        self.engine = self._engine()
        self.results_path = options.out / "results.json"
        self.results: dict[str, Any] = self._earlier()
        self.load = self.files / "users.yaml"

    def run(self) -> int:
        """0 when every step that was begun went as it should."""
        actions: dict[str, Callable[[], dict[str, Any]]] = {
            "first": self.first,
            "graphs": self.graphs,
            "nine": lambda: self.nine("1"),
            "oom": self.oom,
            "measured": self.measured,
            "nine-2": lambda: self.nine("2"),
            "nine-3": lambda: self.nine("3"),
        }
        for step in self.options.steps:
            self._step(step, actions[step])
        self._keep_logs()
        done = [self.results["steps"][step] for step in self.options.steps]
        return 0 if all(step["as_expected"] is not False for step in done) else 1

    def first(self) -> dict[str, Any]:
        self._clean()
        self._must(self.cli.run("db", "upgrade"))
        before = self._gpu()
        found = self._release(artifacts.first, "first")
        return {"release": found, "gpu": [before, self._gpu()]} | expected(found, 0)

    def graphs(self) -> dict[str, Any]:
        before = self._gpu()
        measured: dict[str, Any] = {}

        def held(release: str) -> None:
            measured.update(self._measure())
            measured["gpu"] = self._gpu()
            users.enter_context(self.cli.load(self.load, "graphs"))
            self._must(self.cli.run("resume", release, "--reason", "measured"))

        with ExitStack() as users:
            found = self._release(artifacts.graphs, "graphs", when_paused=held)
        return {"release": found, "measured": measured, "gpu": [before]} | expected(found, 0)

    def nine(self, version: str) -> dict[str, Any]:
        with self.cli.load(self.files / "many.yaml", f"nine-{version}"):
            found = self._release(lambda e: artifacts.nine(e, version), f"nine-{version}")
        gates = {"graph_fallback", "tpot_p90", "ttft_p90"}
        by_gate = str(found["reason"]).partition(":")[0] in gates
        return {"release": found} | expected(found, 3, by_gate)

    def oom(self) -> dict[str, Any]:
        """A KV cache of all that is free, less room for weights and a little; corrected by what
        the engine's log says where that was too little or too much to fail in capture."""
        room = self.options.oom_room_gib
        tries: list[dict[str, Any]] = []
        for attempt in range(1, self.options.oom_tries + 1):
            free = self._gpu()["free_bytes"]
            size = int(free - room * GIB)
            with self.cli.load(self.load, f"oom-{attempt}"):
                found = self._release(
                    functools.partial(artifacts.oom_capture, kv_cache_bytes=size, attempt=attempt),
                    f"oom-{attempt}",
                    when_paused=self._abort,  # it captured after all
                )
            log = "".join(self._log(i["id"]) for i in found["instances"])
            in_capture = CAPTURING in log and CAPTURED not in log and "out of memory" in log.lower()
            tries.append(
                {"release": found, "room_gib": room, "kv_cache_bytes": size, "free_bytes": free}
                | {"in_capture": in_capture, "gpu": self._gpu()}
            )
            if in_capture:
                break
            room += -1.0 if CAPTURED in log else 0.7
        last = tries[-1]
        return {"tries": tries} | expected(last["release"], 3, last["in_capture"])

    def measured(self) -> dict[str, Any]:
        measured: dict[str, Any] = {}

        def held(release: str) -> None:
            measured.update(self._measure())
            self._abort(release)

        found = self._release(artifacts.nine_measured, "measured", when_paused=held)
        return {"release": found, "measured": measured} | expected(found, 3, bool(measured))

    # What the steps are made of

    def _release(
        self,
        make: Callable[[artifacts.Engine], artifacts.Document],
        title: str,
        *,
        when_paused: Callable[[str], None] | None = None,
    ) -> dict[str, Any]:
        """Release what ``make`` makes of the engine. Where the warm-up cannot be run as planned,
        once more with the least of it, and so all that follow; the first try is recorded too."""
        found = self.cli.release(
            artifacts.write(self.files, make(self.engine)), title, when_paused=when_paused
        )
        if not str(found["reason"]).startswith("warmup:"):
            return found
        self.results["warm_up_failed"].append(found)
        self.engine = self.engine.warmed_least()
        return self.cli.release(
            artifacts.write(self.files, make(self.engine)),
            f"{title}-again",
            when_paused=when_paused,
        )

    def _abort(self, release: str) -> None:
        self._must(self.cli.run("abort", release, "--reason", "measured"))

    def _measure(self) -> dict[str, Any]:
        """Each engine at each level, in turns; the order turns around with every repeat."""
        options = self.options
        cells: dict[str, list[dict[str, Any]]] = {}
        engines = self.cli.engines()
        for url in engines.values():  # the client's own first time, and nothing counted
            self._cell(url, min(8, options.levels[-1]), 0.3)
        for repeat in range(options.repeats):
            order = list(engines.items())
            for level in options.levels:
                for name, url in order if repeat % 2 == 0 else reversed(order):
                    cell = self._cell(url, level, options.cell_s)
                    cells.setdefault(f"{name}/{level}", []).append(cell)
            say(f"measured {', '.join(engines)}: repeat {repeat + 1} of {options.repeats}")
        for name, found in cells.items():
            self.results["cells"].setdefault(name, []).extend(found)
        self._save()
        return {name: over_repeats(found) for name, found in cells.items()}

    def _cell(self, url: str, level: int, seconds: float) -> dict[str, Any]:
        options = self.options
        return run_cell(
            url,
            artifacts.SERVICE,
            concurrency=level,
            seconds=seconds,
            prompt_tokens=options.prompt_tokens,
            output_tokens=options.output_tokens,
        ).as_document()

    def _step(self, step: str, action: Callable[[], dict[str, Any]]) -> None:
        why = self._not_now(step)
        if why is not None:
            say(f"{step}: not run: {why}")
            self.results["steps"][step] = {"not_run": why, "as_expected": None}
            self._save()
            return
        say(f"{step}: begins at {time.monotonic() - self.began:.0f} s")
        begun = time.monotonic()
        try:
            found = action()
        except Exception as error:  # recorded, and the rest goes on
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {error}", "as_expected": False}
            self.cli.end_active()
        found["wall_s"] = time.monotonic() - begun
        self.results["steps"][step] = found
        self._save()
        said = found.get("release") or found.get("tries", [{}])[-1].get("release", {})
        say(
            f"{step}: {'as expected' if found['as_expected'] else 'NOT AS EXPECTED'} in "
            f"{found['wall_s']:.0f} s: {found.get('error') or said.get('outcome')}; "
            f"{said.get('reason')}; {json.dumps(said.get('took'))}"
        )

    def _not_now(self, step: str) -> str | None:
        if self.options.cpu is not None and step not in ("first", "graphs", "measured"):
            return "needs CUDA graphs"
        if step != "first" and not self.results["steps"].get("first", {}).get("as_expected"):
            return "there is no stable runtime: the first release did not end well"
        left = self.options.limit_s - (time.monotonic() - self.began)
        needed = EXPECTED_S.get(step, NINE_S)
        return None if left >= needed else f"it takes about {needed} s, and {left:.0f} s are left"

    def _engine(self) -> artifacts.Engine:
        model = self.options.work / "model"
        tool = [sys.executable, str(ROOT / "tools" / "random_model.py"), str(model)]
        if self.options.cpu is not None:
            subprocess.run([*tool, "--tiny"], check=True)
            return artifacts.cpu_engine(self.options.cpu.absolute(), model)
        subprocess.run(tool, check=True)
        site = next(iter(os.environ.get("PYTHONPATH", "").split(os.pathsep)))
        return artifacts.gpu_engine(
            [sys.executable],
            str(Path(site).absolute()) if site else "",
            model,
            self.options.work / "vllm-cache",
            fraction=self.options.fraction,
            warm=list(self.options.warm),
        )

    def _earlier(self) -> dict[str, Any]:
        """What earlier steps of the same work folder found, unless this run begins anew."""
        kept = self.options.work / "results.json"
        if "first" not in self.options.steps and kept.exists():
            found: dict[str, Any] = json.loads(kept.read_text())
            return found
        return {"machine": self._machine(), "settings": self._settings(), "steps": {}} | {
            "cells": {},
            "warm_up_failed": [],
        }

    def _machine(self) -> dict[str, Any]:
        runtime = self.engine.runtime
        return {
            "gpus": [gpu.name for gpu in inspect_machine().gpus],
            "driver": inspect_machine().driver,
            "cpus": os.cpu_count(),
            "engine": f"vLLM {runtime['engine']['version']}",
            "canaryctl": importlib.metadata.version("canaryctl"),
            "python": sys.version.split()[0],
        }

    def _settings(self) -> dict[str, Any]:
        options = self.options
        return {
            "levels": list(options.levels),
            "repeats": options.repeats,
            "cell_s": options.cell_s,
            "prompt_tokens": options.prompt_tokens,
            "output_tokens": options.output_tokens,
            "fraction": options.fraction,
            "runtime": self.engine.runtime,
        }

    def _gpu(self) -> dict[str, Any]:
        gpus = inspect_machine().gpus
        if not gpus:
            return {"free_bytes": None, "memory_bytes": None}
        return {"free_bytes": gpus[0].free_bytes, "memory_bytes": gpus[0].memory_bytes}

    def _log(self, instance: str) -> str:
        path = self.state / "instances" / instance / "engine.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _keep_logs(self) -> None:
        with self.cli.store() as store:
            for instance in store.instances(service=artifacts.SERVICE):
                artifact = store.artifact(instance.digest)
                log = self.state / "instances" / instance.id / "engine.log"
                if log.exists():
                    name = f"engine-{artifact.name}-{artifact.version}-{instance.id[-6:]}.log"
                    shutil.copy(log, self.options.out / name)
        for log in self.state.glob("routers/*/*.log"):
            shutil.copy(log, self.options.out / f"router-{log.name}")

    def _save(self) -> None:
        text = json.dumps(self.results, indent=1) + "\n"
        self.results_path.write_text(text)
        (self.options.work / "results.json").write_text(text)
        (self.options.out / "h200.md").write_text(page(self.results))

    def _must(self, done: subprocess.CompletedProcess[str]) -> None:
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(done.args[3:])}: {done.stdout}{done.stderr}")

    def _clean(self) -> None:
        """End what an earlier run left, and its record."""
        if self.state.exists():
            self.cli.end_active()
            self.cli.run("remove", artifacts.SERVICE)
            shutil.rmtree(self.state)

    def remove(self) -> None:
        self.cli.run("remove", artifacts.SERVICE)


def expected(release: dict[str, Any], code: int, also: bool = True) -> dict[str, Any]:
    """A release that only its deadline ended was not decided."""
    decided = not any(event["message"].startswith("deadline") for event in release["events"])
    return {"as_expected": release["exit_code"] == code and decided and also}


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def main() -> int:
    options, keep = parse(sys.argv[1:], (__doc__ or "").partition("\n")[0])
    bench = Bench(options)
    try:
        return bench.run()
    finally:
        if not keep:
            bench.remove()


if __name__ == "__main__":
    sys.exit(main())
