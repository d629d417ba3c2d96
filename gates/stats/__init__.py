"""The statistics of docs/gates.md: pure functions, standard library only."""
