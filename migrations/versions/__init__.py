"""One file for each revision, numbered; they repeat the tables as they were then."""
