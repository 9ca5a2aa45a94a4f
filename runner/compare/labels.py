"""Labels of methods in a picture: their lines, their sizes and their places."""

import re

import numpy as np
from matplotlib.textpath import TextPath

from runner.report.plots import plain

FONT_SIZE = 8.0  # points
LINE_HEIGHT = 1.35 * FONT_SIZE / 72  # inches
# Where a word may be broken that is longer than a line: never in a number such as 1e-05.
BREAKS = re.compile(r"(?<=[,=/_])|(?<=-)(?=[a-zA-Z])")


def wrap(label: str, width: int) -> str:
    """A label in lines of at most `width` characters, longer only where a number or a word cannot be broken."""
    lines = [""]
    for word in label.split():
        for i, part in enumerate(BREAKS.split(word) if len(word) > width else [word]):
            longer = (lines[-1] + (" " if i == 0 else "") + part).lstrip()
            if len(longer) <= width or not lines[-1]:
                lines[-1] = longer
            else:
                lines.append(part)
    return plain("\n".join(lines))


def text_width(text: str) -> float:
    """Width of the longest line, in inches."""
    return max(TextPath((0, 0), line, size=FONT_SIZE).get_extents().width for line in text.split("\n")) / 72


def text_height(text: str) -> float:
    """Height of all lines, in inches."""
    return (text.count("\n") + 1) * LINE_HEIGHT


def spread(wanted: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """Centres of labels of these heights that do not overlap, as near to the wanted ones as least squares can.

    Args:
        wanted: in ascending order, [n], in a range of 0 to 1 in which the labels stay if they fit.
        heights: [n].
    """
    from scipy.optimize import isotonic_regression

    offsets = np.append(0.0, np.cumsum((heights[1:] + heights[:-1]) / 2))  # of labels that touch each other
    lowest, highest = heights[0] / 2, 1 - heights[-1] / 2 - offsets[-1]
    return np.clip(isotonic_regression(wanted - offsets).x, lowest, max(lowest, highest)) + offsets
