"""artifact.yaml: reading it, checking it, naming it by digest, comparing two."""
