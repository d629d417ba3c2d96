"""Planning the capture grid: from the shapes of traffic to the sizes worth a graph. Pure."""
