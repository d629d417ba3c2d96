"""One command each; results as tables in docs/benchmarks/."""
