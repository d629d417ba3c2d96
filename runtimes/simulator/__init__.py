"""A simulated engine: a real server over a step-level model of continuous batching."""
