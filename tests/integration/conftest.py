"""Fixtures of the tests that run real programs."""

from tests.support.cpu_vllm import cpu_vllm_python, tiny_model
from tests.support.envoy import canary, port, router, stable, upstream

__all__ = ["canary", "cpu_vllm_python", "port", "router", "stable", "tiny_model", "upstream"]
