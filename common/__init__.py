"""What every layer may use: the error tree, units, clocks and metric names.

Nothing here knows of artifacts, engines, gates or releases.
"""
