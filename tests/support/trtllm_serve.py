"""A stand-in for ``trtllm-serve``: its command line, YAML, log lines, routes and metrics, as its
sources and documentation say (1.2, backend pytorch). No model, no GPU, and no TensorRT-LLM.

Run as a program: ``python trtllm_serve.py MODEL --host … --port … --config FILE``.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

import yaml
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

OPTIONS = {
    "host",
    "port",
    "backend",
    "tokenizer",
    "max_batch_size",
    "max_num_tokens",
    "max_seq_len",
    "tp_size",
    "pp_size",
    "ep_size",
    "kv_cache_free_gpu_memory_fraction",
    "config",
    "extra_llm_api_options",
    "num_postprocess_workers",
}
GRAPH_FIELDS = {"batch_sizes", "max_batch_size", "enable_padding"}
REQUEST_FIELDS = {  # of its CompletionRequest, which forbids others: those that are sent
    "model",
    "prompt",
    "max_tokens",
    "min_tokens",
    "ignore_eos",
    "temperature",
    "seed",
    "logprobs",
    "stream",
}
COMPILE_FIELDS = {"enable_piecewise_cuda_graph", "capture_num_tokens", "enable_userbuffers"}


def read_command_line(words: list[str]) -> tuple[str, dict[str, str]]:
    """The model and the options; exits as click does on one that there is not."""
    models = [word for word in words if not word.startswith("--")]
    options = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
    for name in options:
        if name not in OPTIONS:
            sys.exit(f"Error: No such option: --{name}")
    if len(models) != 1:
        sys.exit("Error: Missing argument 'MODEL'.")
    return models[0], options


def decode_sizes(graphs: Mapping[str, Any] | None, most: int) -> list[int]:
    """What CudaGraphConfig makes of its fields, and what the model engine keeps of that."""
    if graphs is None:
        return []
    if unknown := graphs.keys() - GRAPH_FIELDS:
        raise ValueError(f"Extra inputs are not permitted: {sorted(unknown)}")
    sizes, largest = graphs.get("batch_sizes"), graphs.get("max_batch_size", 0)
    if sizes and largest not in (0, max(sizes)):
        raise ValueError("max_batch_size must equal max(batch_sizes)")
    padded = graphs.get("enable_padding", False)
    default = [1, 2, 4, *range(8, 129, 8)] if padded else [*range(1, 33), 64, 128]
    wanted = sorted(sizes or default)
    kept = [size for size in wanted if size <= most]
    if padded and wanted[-1] > most and most not in kept:
        kept.append(most)
    return kept


class Engine:
    """The state behind the routes."""

    def __init__(self, model: str, config: Mapping[str, Any]) -> None:
        path = Path(model)
        self.model = path.name if path.is_dir() else model
        self.has_metrics = config.get("return_perf_metrics") is True
        self.has_iterations = config.get("enable_iter_perf_stats") is True
        self.tokens = 0
        self.lock = Lock()
        self.iterations: list[dict[str, int]] = []
        self.registry = CollectorRegistry()
        labels = ("model_name", "engine_type")
        self.values = ("undefined", "undefined")
        self.success = Counter(
            "trtllm_request_success_total",
            "Requests that ended well.",
            (*labels, "finished_reason"),
            registry=self.registry,
        )
        self.times = {
            name: Histogram(
                f"trtllm_{name}_seconds", name, labels, buckets=edges, registry=self.registry
            )
            for name, edges in (
                ("time_to_first_token", (0.001, 0.01, 0.1, 1.0)),
                ("time_per_output_token", (0.01, 0.1, 1.0)),
                ("e2e_request_latency", (0.3, 1.0, 10.0)),
                ("request_queue_time", (0.3, 1.0, 10.0)),
            )
        }

    def generate(self, wanted: int) -> Iterator[int]:
        begun = time.perf_counter()
        for index in range(wanted):
            if index == 1:
                self._observe("time_to_first_token", time.perf_counter() - begun)
            with self.lock:
                self.tokens += 1
                self.iterations.append({"iter": self.tokens, "numActiveRequests": 1})
            yield index
        took = time.perf_counter() - begun
        if wanted == 1:
            self._observe("time_to_first_token", took)
        else:
            self._observe("time_per_output_token", took / (wanted - 1))
        self._observe("e2e_request_latency", took)
        self._observe("request_queue_time", 0.0)
        self.success.labels(*self.values, "length").inc()

    def drained(self) -> list[dict[str, int]]:
        """The iterations since the last reading, whoever read."""
        with self.lock:
            taken, self.iterations = self.iterations, []
        return taken if self.has_iterations else []

    def _observe(self, name: str, seconds: float) -> None:
        self.times[name].labels(*self.values).observe(seconds)


def handler(engine: Engine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/health":
                self._answer(b"", "text/plain")
            elif self.path == "/health_generate":
                list(engine.generate(1))
                self._answer(b"", "text/plain")
            elif self.path == "/metrics":
                self._answer(json.dumps(engine.drained()).encode(), "application/json")
            elif self.path == "/prometheus/metrics" and engine.has_metrics:
                page = generate_latest(engine.registry)
                self._answer(page, "text/plain; version=0.0.4; charset=utf-8")
            else:
                self.send_error(404)

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.path != "/v1/completions":
                self.send_error(404)
                return
            if unknown := asked.keys() - REQUEST_FIELDS:
                self.send_error(400, f"Extra inputs are not permitted: {sorted(unknown)}")
                return
            events = [
                {"model": engine.model, "choices": [{"index": 0, "text": f" {token}"}]}
                for token in engine.generate(asked["max_tokens"])
            ]
            if asked.get("stream"):
                lines = [f"data: {json.dumps(event)}\n\n" for event in events]
                self._answer("".join([*lines, "data: [DONE]\n\n"]).encode(), "text/event-stream")
                return
            text = "".join(event["choices"][0]["text"] for event in events)  # type: ignore[index]
            usage = {"completion_tokens": len(events)}
            choice: dict[str, Any] = {"index": 0, "text": text}
            if asked.get("logprobs"):
                words = [event["choices"][0]["text"] for event in events]  # type: ignore[index]
                choice["logprobs"] = {"tokens": words, "token_logprobs": [-1.0] * len(words)}
            body = {"choices": [choice], "usage": usage}
            self._answer(json.dumps(body).encode(), "application/json")

        def _answer(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            say(f'INFO:     127.0.0.1 - "{format % args}"')

    return Handler


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def tell(line: str, level: str = "I") -> None:
    say(f"[12/20/2025-04:20:19] [TRT-LLM] [{level}] {line}")


def warm_up(sizes: list[int], tokens: list[int]) -> None:
    if sizes:
        tell(f"Creating CUDA graph instances for {len(sizes)} batch sizes.")
    for size in sorted(sizes, reverse=True):
        tell(f"Run generation only CUDA graph warmup for batch size={size}, draft_len=0")
    if tokens:
        tell("Running piecewise CUDA graph warmup...")
    for count in sorted(tokens, reverse=True):
        tell(f"Run piecewise CUDA graph warmup for num tokens={count}")


def main() -> None:
    model, options = read_command_line(sys.argv[1:])
    file = options.get("config") or options["extra_llm_api_options"]
    config = yaml.safe_load(Path(file).read_text())
    say("[TensorRT-LLM] TensorRT-LLM version: 1.2.0")
    tell("Using LLM with PyTorch backend")
    sizes = decode_sizes(config["cuda_graph_config"], int(options["max_batch_size"]))
    compiled = config.get("torch_compile_config") or {}
    if unknown := compiled.keys() - COMPILE_FIELDS:
        raise ValueError(f"Extra inputs are not permitted: {sorted(unknown)}")
    tokens = compiled.get("capture_num_tokens", sizes) if compiled else []
    tell("Use 1.50 GB for model weights.")
    say("Model init total -- 2.25s")
    for cache in (8224, 86720):  # first to measure what is left, then in earnest
        say(
            "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 0.56 GiB for max tokens in paged KV"
            f" cache ({cache})."
        )
        warm_up(sizes, tokens)
    address = (options["host"], int(options["port"]))
    server = ThreadingHTTPServer(address, handler(Engine(model, config)))
    say("INFO:     Application startup complete.")
    say(f"INFO:     Uvicorn running on http://{address[0]}:{address[1]} (Press CTRL+C to quit)")
    server.serve_forever()


if __name__ == "__main__":
    main()
