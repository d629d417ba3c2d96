"""Where samples come from. One file per source; see base.SampleSource."""
