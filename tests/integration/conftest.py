"""Fixtures of the tests that run real programs."""

from tests.support.cpu_vllm import cpu_vllm_python, tiny_model

__all__ = ["cpu_vllm_python", "tiny_model"]
