"""One file per traffic router. See base.Router."""
