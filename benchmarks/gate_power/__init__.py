"""How often the latency gates are wrong, and how soon they are right, in simulated worlds."""
