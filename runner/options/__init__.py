"""The options of a run and their command line."""
