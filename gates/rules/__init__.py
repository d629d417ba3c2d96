"""Rules that a gate is made of: one statistical question each, answered by a Standing."""
