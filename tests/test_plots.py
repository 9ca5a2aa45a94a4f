"""runner/report/plots.py: what the picture of one setting shows."""

import warnings

import numpy as np
import pytest
from matplotlib import image
from matplotlib.backends.backend_agg import FigureCanvasAgg

from runner.report import plots
from runner.report.plots import plot_curve, plot_curves, plot_metrics, plot_sweep
from runner.report.results import draw as draw_picture
from runner.report.statistics import Curve

STEPS = np.arange(1, 21) * 1000


def curve_of(num_seeds, num_points=20):
    """Returns that rise from 0 to about 500, with noise."""
    rise = 500 * np.linspace(0, 1, num_points) + np.random.default_rng(0).normal(size=(num_seeds, num_points))
    mean = rise.mean(axis=0) if num_seeds else np.zeros(num_points)
    return Curve(STEPS[:num_points], rise, mean, mean, mean - 1, mean + 1)


@pytest.fixture
def figures(monkeypatch):
    """Every figure that is saved, once it has been drawn."""
    figures = []

    def save(figure, path):
        FigureCanvasAgg(figure).draw()
        figures.append(figure)

    monkeypatch.setattr(plots, "_save", save)
    return figures


@pytest.fixture
def draw(figures):
    """`plot_curve`, but returns the axes and the legend."""

    def draw(curves, policy="greedy"):
        plot_curve(None, curves, "title", policy)
        return figures[-1].axes[0], figures[-1].legends[0]

    return draw


def texts(legend):
    return [text.get_text() for text in legend.get_texts()]


@pytest.mark.parametrize(
    ("num_seeds", "num_thin", "label"),
    [(2, 2, "single seeds"), (100, 100, "single seeds"), (101, 100, "the first 100 seeds")],
)
def test_there_is_a_thin_line_for_each_of_at_most_100_seeds(draw, num_seeds, num_thin, label):
    axes, legend = draw({"training": curve_of(num_seeds)})
    thin, thick = (
        [line for line in axes.lines if (line.get_linewidth() > 1) == is_thick] for is_thick in (False, True)
    )
    assert (len(thin), len(thick)) == (num_thin, 1)
    np.testing.assert_array_equal([line.get_ydata() for line in thin], curve_of(num_seeds).returns[:num_thin])
    assert texts(legend) == [label, "95 % CI", f"training return, IQM of {num_seeds} seeds"]


def test_a_single_seed_is_one_line(draw):
    axes, legend = draw({"training": curve_of(1)})
    assert len(axes.lines) == 1
    assert texts(legend) == ["training return, one seed"]


@pytest.mark.parametrize("num_seeds", [1, 16])
def test_the_evaluation_is_shown_instead_of_the_training_return(draw, num_seeds):
    curves = {"training": curve_of(num_seeds), "evaluation": curve_of(num_seeds)}
    _, legend = draw(curves, "sampled")
    assert texts(legend)[-2].startswith("sampled evaluation")
    _, legend = draw(curves)
    assert texts(legend)[-2].startswith("greedy evaluation")
    assert [text for text in texts(legend) if "evaluation" in text] == [texts(legend)[-2]]
    assert texts(legend)[-1] == "training return"


@pytest.mark.parametrize("num_seeds", [1, 16, 2048])
def test_the_legend_hides_no_curve(draw, num_seeds):
    """It is below the axes and in the picture."""
    axes, legend = draw({"training": curve_of(num_seeds), "evaluation": curve_of(num_seeds)})
    box, picture = legend.get_window_extent(), axes.figure.bbox
    assert picture.y0 <= box.y0 < box.y1 < axes.get_window_extent().y0
    assert picture.x0 <= box.x0 < box.x1 <= picture.x1


@pytest.mark.slow
@pytest.mark.parametrize("num_seeds", [0, 1, 2, 2048])
@pytest.mark.parametrize("num_points", [0, 1, 20])
def test_a_picture_of_any_size_is_written_without_a_warning(num_seeds, num_points, tmp_path):
    """With 2,048 seeds matplotlib warned that it looks long for a place for the legend."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot_curve(tmp_path / "curve.png", {"training": curve_of(num_seeds, num_points)}, "title")
    assert image.imread(tmp_path / "curve.png").shape[:2] == (540, 840)


# -- metrics.png -------------------------------------------------------------------------------------------------------

OTHERS = ["alpha", "clip_fraction", "entropy", "eval_episode_length", "num_episodes", "q_mean"]


@pytest.fixture
def panels(figures):
    """The visible panels of `plot_metrics` for metrics of these names."""

    def panels(names):
        evaluated, trained = (STEPS[::4], np.ones((3, 5))), (STEPS, np.ones((3, 20)))
        plot_metrics(None, {name: evaluated if "eval" in name else trained for name in names}, "title")
        return [axes for axes in figures[-1].axes if axes.get_visible()]

    return panels


def test_returns_lengths_and_losses_are_the_first_panels(panels):
    """Then come the others by name."""
    expected = ["episode_return", "eval_episode_return", "episode_length", "actor_loss", "critic_loss", *OTHERS]
    drawn = panels(sorted(expected))
    assert [axes.get_title() for axes in drawn] == expected
    evaluation = drawn[1].lines[0]
    np.testing.assert_array_equal(evaluation.get_xdata(), STEPS[::4])


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 10))
def test_lowest_panels_have_numbers_at_their_ticks(panels, number):
    drawn = panels([f"metric_{i}" for i in range(number)])
    has_numbers = [any(x.get_visible() and x.get_text() for x in axes.get_xticklabels()) for axes in drawn]
    assert has_numbers == [i + 4 >= number for i in range(number)]


@pytest.mark.parametrize(
    ("values", "scale"), [((0.0, 0.001, 0.1), "symlog"), ((0.001, 0.1), "symlog"), ((0.0, 0.5, 1.0), "linear")]
)
def test_powers_of_ten_have_a_logarithmic_axis_also_with_a_zero(values, scale, figures):
    summaries = [{"iqm": 1.0, "ci_low": 0.0, "ci_high": 2.0}] * len(values)
    steps = np.full(len(values), 100)
    plot_sweep("sweep.png", {"coefficient": np.array(values)}, summaries, steps, is_grid=True, title="")
    assert figures[0].axes[0].get_xscale() == scale


SCORES = [{"iqm": 1.0, "ci_low": 0.0, "ci_high": 2.0}] * 2
TEX = "$^$"  # no formula, at which matplotlib raises


def test_no_text_is_read_as_a_formula(figures):
    curve, values = curve_of(2), np.array([0.1, 0.2])
    plot_curve(None, {"training": curve}, TEX)
    plot_curves(None, [TEX, "b"], {"training": [curve, curve]}, [0, 1], TEX)
    plot_metrics(None, {TEX: (STEPS, np.ones((1, 20)))}, TEX)
    plot_sweep(None, {TEX: values}, SCORES, np.full(2, 100), True, TEX)
    plot_sweep(None, {TEX: values, "b": values}, SCORES, np.full(2, 100), True, TEX)
    assert len(figures) == 5


def test_the_curves_of_a_sweep_differ_in_colour_style_and_marker(figures):
    plot_curves(None, list("abcdefgh"), {"training": [curve_of(2)] * 8}, list(range(8)), "title")
    lines = figures[0].axes[0].lines
    assert len(lines) == plots.MAX_LINES
    for looks in ([x.get_color() for x in lines], [x.get_marker() for x in lines], [x._dash_pattern for x in lines]):
        assert len(set(map(repr, looks))) == len(lines)


@pytest.mark.parametrize(("num_seeds", "title"), [(1, "title"), (2, "title: median and middle half of the seeds")])
def test_metrics_of_one_seed_have_no_quartiles(num_seeds, title, figures):
    """A tick has its whole number: a common part of all ticks would stand over the title of the panel."""
    values = 1 + 1e-6 * np.linspace(0, 1, 20) * np.ones((num_seeds, 1))
    plot_metrics(None, {"eta": (STEPS, values)}, "title")
    assert figures[0].get_suptitle() == title
    assert figures[0].axes[0].yaxis.get_offset_text().get_text() == ""


def test_a_cell_without_a_score_can_be_read(figures):
    """Its cell is white."""
    scores = [{"iqm": np.nan}, {"iqm": 1.0}]
    plot_sweep(None, {"a": np.array([1, 2]), "b": np.array([1, 1])}, scores, np.full(2, 100), True, "title")
    assert {text.get_text(): text.get_color() for text in figures[0].axes[0].texts}["nan"] == "black"


@pytest.mark.parametrize("error", [RuntimeError("latex\nlog"), ValueError("image too large"), MemoryError()])
def test_a_picture_that_cannot_be_drawn_is_said_in_a_line(error, tmp_path, monkeypatch, capsys):
    def save(figure, path):
        raise error

    monkeypatch.setattr(plots, "_save", save)
    assert not draw_picture(plot_curve, tmp_path / "curve.png", {"training": curve_of(1)}, "title")
    printed = capsys.readouterr()
    first = str(error).partition("\n")[0]
    assert printed.err == f"error: {tmp_path}/curve.png is not drawn: {type(error).__name__}: {first}\n"
