"""One file per engine: argv, health, metric names, log lines, grid. See base.Engine."""
