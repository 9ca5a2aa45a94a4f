"""What only the command line needs: options, lanes, memory, checkpoints, evaluation, statistics, plots, tracking.

A script imports nothing of it but `run`, in its last lines. Copied research code does not need it.
"""
