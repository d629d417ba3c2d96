"""Synthetic load: seeded requests in an open loop, and a report of how they were answered."""
