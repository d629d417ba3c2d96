"""Engines (how a runtime is started, named and read), placements (where it runs), routers."""
