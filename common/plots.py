"""The learning curve as a picture."""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from common.statistics import Curve


def plot_curve(path: Path, curve: Curve, title: str) -> None:
    """Write the IQM over seeds with its 95 % interval and a thin line for each seed.

    Raises OSError if `path` cannot be written.
    """
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for returns in curve.returns:
        axes.plot(curve.env_steps, returns, color="tab:blue", linewidth=0.5, alpha=0.35)
    num_seeds = len(curve.returns)
    if num_seeds > 1:
        axes.fill_between(
            curve.env_steps, curve.ci_low, curve.ci_high, color="tab:blue", alpha=0.25, linewidth=0, label="95 % CI"
        )
    label = f"IQM of {num_seeds} seeds" if num_seeds > 1 else "one seed"
    axes.plot(curve.env_steps, curve.iqm, color="tab:blue", linewidth=2, label=label)
    axes.set(title=title, xlabel="environment steps per seed", ylabel="episode return (training)")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120, format="png")
