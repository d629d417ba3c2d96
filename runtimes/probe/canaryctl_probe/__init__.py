"""What a vLLM engine's steps did, on the engine's own /metrics."""
