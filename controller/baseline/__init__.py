"""Baseline runs: an artifact's stages under one load, measured before anything is released."""
