"""One file per place where engines run. See base.Placement."""
