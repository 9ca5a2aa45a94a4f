"""The numbers of a report: the scores of all settings, their ranking and their learning curves."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.experiment import EVAL_STEPS, Experiment, Result
from runner.report.commands import rerun_command
from runner.report.statistics import Curve, evaluation_curve, final_return, learning_curve, rank, summarize


@dataclass(frozen=True)
class Scores:
    """The numbers of a report."""

    summary: dict[str, Any]  # of summary.json
    curves: dict[str, list[Curve]]  # training and, with two evaluations or more, evaluation: of each setting
    settings: list[dict[str, float]]  # statistics of each setting's final scores; of a sweep alone
    shown: list[dict[str, float]]  # the same without diverged seeds, if others are left
    env_steps: np.ndarray  # of one seed of each setting; a sweep that is halved stops some early
    ranking: list[int]  # settings, the best first; those that were stopped early come last
    diverged: np.ndarray  # trials
    unmeasured: dict[str, tuple[int, np.ndarray]]  # see `find_unmeasured`
    greedy_gap: tuple[float, float] | None  # of the best setting: see `find_greedy_gap`


def compute(experiment: Experiment, preset: Any, result: Result) -> Scores:
    """All numbers of a report."""
    config, options, scores = experiment.config, experiment.options, dict(result.scores)
    num_cut = int(scores.pop("eval_cut_episodes", np.zeros(1)).sum())
    is_healthy = scores.pop("is_healthy")
    if "eval_episode_return" not in scores:
        scores["training_return"] = training_returns(result)
    summary = {
        "env": config.env,
        "env_steps": config.env_steps(result.metrics["episode_return"].shape[1]),
        "eval_episodes": options.eval_episodes,
        "eval_sampled": options.eval_sampled,
        "eval_cut_episodes": num_cut,
    }
    entries = [summarize_setting(experiment, scores, is_healthy, i) for i in range(experiment.num_settings)]
    ranked_by = "eval_episode_return" if "eval_episode_return" in scores else "training_return"
    final, healthy = experiment.by_setting(scores[ranked_by]), experiment.by_setting(is_healthy)
    shown = [summarize(x[kept] if kept.any() else x) for x, kept in zip(final, healthy, strict=True)]
    settings, ranking = [], [0]
    env_steps = np.array([config.env_steps(n) for n in experiment.by_setting(result.num_iterations)[:, 0].tolist()])
    if experiment.settings:
        settings = [summarize(x) for x in np.where(healthy, final, np.nan)]  # one that diverged is last
        ranking = rank(settings, options.rank_by.replace("-", "_"))
        ranking.sort(key=lambda i: (np.isnan(settings[i]["mean"]), -env_steps[i]))
        if experiment.is_halved:
            entries = [x | {"env_steps": int(n)} for x, n in zip(entries, env_steps, strict=True)]
        rerun = rerun_command(experiment.script, config, options, preset, experiment.setting(ranking[0]))
        summary |= {"settings": entries, "ranked_by": ranked_by, "rank_by": options.rank_by}
        summary |= {"ranking": ranking, "rerun": rerun}
    else:
        summary |= entries[0]
    curves, gap = make_curves(experiment, result), None
    if result.evaluations and not options.eval_sampled:
        best = ranking[0]
        greedy = experiment.by_setting(result.evaluations["eval_episode_return"])[best]
        gap = find_greedy_gap(curves["training"][best], result.evaluations[EVAL_STEPS], greedy)
    diverged, unmeasured = np.flatnonzero(~is_healthy), find_unmeasured(experiment, result)
    return Scores(summary, curves, settings, shown, env_steps, ranking, diverged, unmeasured, gap)


def find_greedy_gap(training: Curve, env_steps: np.ndarray, greedy: np.ndarray) -> tuple[float, float] | None:
    """The greedy return and the training return where one stays far below the other, as where the best policy is
    random; else None.

    Three quarters of the evaluations in the last half of the run lie below the training return at its end, by more than
    half of all that it has moved and more than a tenth of it.

    Args:
        env_steps, greedy: of the evaluations [n], and their returns [num_seeds, n].
    """
    late = greedy[:, 2 * env_steps > env_steps[-1]]
    if late.size == 0 or len(training.iqm) == 0:
        return None
    trained = training.iqm[-10:].mean()
    with np.errstate(invalid="ignore"):  # a return may be infinite
        is_far = trained - np.quantile(late, 0.75) > max(np.ptp(training.iqm) / 2, abs(trained) / 10)
    return (float(np.median(late)), float(trained)) if is_far else None


def find_unmeasured(experiment: Experiment, result: Result) -> dict[str, tuple[int, np.ndarray]]:
    """Metrics without a finite value in the last tenth of a run, in trials that have not diverged.

    Returns:
        name -> env steps from which on a trial has none, and these trials.
    """
    found, num_iterations = {}, result.num_iterations[:, None]
    for name, x in result.metrics.items():
        iterations = np.arange(x.shape[1])
        is_finite = np.isfinite(x) & (iterations < num_iterations)
        is_late = iterations >= num_iterations - np.maximum(1, num_iterations // 10)
        trials = np.flatnonzero(~(is_finite & is_late).any(axis=1) & result.scores["is_healthy"])
        if len(trials):
            last = max((int(np.max(np.flatnonzero(row), initial=-1)) for row in is_finite[trials]), default=-1)
            found[name] = int(experiment.config.env_steps(last + 1)), trials
    return found


def training_returns(result: Result) -> np.ndarray:
    """`final_return` of each trial at its own end, [num_trials]."""
    returns = np.full(len(result.num_iterations), np.nan)
    for n in set(result.num_iterations.tolist()):
        trials = result.num_iterations == n
        metrics = (result.metrics[name][trials, :n] for name in ("episode_return", "num_episodes"))
        returns[trials] = final_return(*metrics)
    return returns


def make_curves(experiment: Experiment, result: Result) -> dict[str, list[Curve]]:
    """The learning curves of each setting: of the training return and, with two points or more, of the evaluation."""
    env_steps = experiment.env_steps(result.metrics["episode_return"].shape[1])
    returns, counts = (experiment.by_setting(result.metrics[name]) for name in ("episode_return", "num_episodes"))
    lengths = experiment.by_setting(result.num_iterations)[:, 0].tolist()
    curves = {
        "training": [
            learning_curve(env_steps[:n], x[:, :n], counts_of_x[:, :n])
            for x, counts_of_x, n in zip(returns, counts, lengths, strict=True)
        ]
    }
    steps = result.evaluations.get(EVAL_STEPS, np.empty(0))
    if len(steps) > 1:
        returns, curves["evaluation"] = experiment.by_setting(result.evaluations["eval_episode_return"]), []
        for x, n in zip(returns, lengths, strict=True):
            shown = steps <= env_steps[n - 1]
            curves["evaluation"].append(evaluation_curve(steps[shown], x[:, shown]))
    return curves


def summarize_setting(
    experiment: Experiment, scores: dict[str, np.ndarray], is_healthy: np.ndarray, index: int
) -> dict[str, Any]:
    """The entry of one setting in summary.json."""
    seeds, healthy = (experiment.by_setting(x)[index] for x in (experiment.trial_seeds, is_healthy))
    by_setting = {name: experiment.by_setting(x)[index] for name, x in scores.items()}
    summaries = {name: summarize(x) | {"per_seed": x.tolist()} for name, x in by_setting.items()}
    return experiment.setting(index) | {"diverged_seeds": seeds[~healthy].tolist()} | summaries
