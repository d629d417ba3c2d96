"""Calibrating: what steps and graphs cost, measured with an engine or with plain torch."""
