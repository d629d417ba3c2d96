"""From artifact.yaml to a release that is promoted or rolled back."""
