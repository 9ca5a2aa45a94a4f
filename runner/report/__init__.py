"""Progress, statistics, plots and tracking."""
