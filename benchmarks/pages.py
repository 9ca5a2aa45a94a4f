"""Tables of RESULTS.md, GPU.md, README.md and the pages of the scripts, from the raw files alone."""

import csv
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pictures import normalized_returns, picture_of, slug
from restamp import EQUAL
from rows import FAMILIES, GPU, HIGHLIGHTS, OPTIONS, PAIRS, Pair, has_failed, wilson, wins
from seeds import number_table, twenty_table, with_many_seeds, wrong_answers
from tables import FOLDER, ROOT, markdown, with_table

from runner.report.statistics import (
    aggregate_iqm,
    bootstrap_interval,
    mean_share,
    probability_of_improvement,
    summarize,
)

HOW_GOOD = ROOT / "docs" / "how-good.md"
BEGIN = "<!-- made by benchmarks/results.py{} -->"
SHORT = ("script", "environment", "env steps per seed", "IQM", "95 % interval", "worst seed", "best published")


def pages(raws: dict[Pair, dict[str, Any]]) -> dict[Path, str]:
    """The text of every page with what the raw files say between its comments."""
    blocks = result_blocks(raws)
    texts = {page: filled(page, blocks) for page in (FOLDER / "RESULTS.md", FOLDER / "GPU.md")}
    texts[HOW_GOOD] = filled(HOW_GOOD, {"published": beside_published(raws)})
    rows = {ROOT / "README.md": [pair for pair in raws if pair.name in HIGHLIGHTS]}
    for script in dict.fromkeys(pair.script for pair in PAIRS):
        rows[ROOT / "docs" / f"{script}.md"] = [x for x in raws if x.script == script and not x.changes]
    tables = {page: table({pair: raws[pair] for pair in pairs}, page.parent, SHORT) for page, pairs in rows.items()}
    return texts | {page: filled(page, {"": lines}) for page, lines in tables.items()}


def filled(page: Path, blocks: dict[str, list[str]]) -> str:
    """The text of a page with other lines after each comment, by the name in the comment."""
    text = page.read_text()
    for name, lines in blocks.items():
        begin = BEGIN.format(name and f": {name}")
        if begin in text:
            text = with_table(text, begin, lines)
    return text


def result_blocks(raws: dict[Pair, dict[str, Any]]) -> dict[str, list[str]]:
    """The generated blocks of RESULTS.md and GPU.md, by the names in their comments."""
    others = {pair: raw for pair, raw in raws.items() if pair not in FAMILIES[GPU]}
    counted = [pair for pair in others if not pair.changes or pair.bar is not None or pair.published != "none"]
    failed = np.concatenate([has_failed(others[pair]) for pair in counted])
    which = "not counting the rows of GPU.md and those that change a preset and have neither a bar nor a public number"
    hundreds = with_many_seeds(raws)
    return {slug(family): family_table(family, raws) for family in FAMILIES} | {
        "failed": [f"{failed.sum()} of {len(failed)} seeds have failed, {which}."],
        "achievements": achievement_table(others),
        "beside-dqn": beside_dqn(raws),
        "twenty": twenty_table(hundreds),
        "number-of-seeds": number_table(wrong_answers(hundreds)),
        "programs": restamped(raws),
        "aggregate": aggregate_table(raws),
        "speed": speed_table(),
    }


def family_table(family: str, raws: dict[Pair, dict[str, Any]]) -> list[str]:
    """The table of a family, its picture, and which of its rows are not measured."""
    measured = {pair: raws[pair] for pair in FAMILIES[family] if pair in raws}
    missing = [pair.name for pair in FAMILIES[family] if pair not in raws]
    lines = option_table(measured, raws) if family == OPTIONS else table(measured, FOLDER) if measured else []
    if measured and family != OPTIONS:
        lines += ["", f"![Evaluation curves](results/{picture_of(family)})"]
    return [*lines, "", f"Not measured yet: {', '.join(missing)}."] if missing else lines


def table(raws: dict[Pair, dict[str, Any]], folder: Path, columns: tuple[str, ...] = ()) -> list[str]:
    """A Markdown table of these columns (all if none is named), with links as they are from `folder`."""
    rows = [cells(pair, raw, folder) for pair, raw in raws.items()]
    columns = columns or tuple(rows[0])
    return markdown(columns, ([row[column] for column in columns] for row in rows))


def cells(pair: Pair, raw: dict[str, Any], folder: Path) -> dict[str, str]:
    """The row of a pair, by column."""
    scores = np.array(raw["final_episode_return"])
    x, failed = summarize(scores), has_failed(raw)
    digits = 1 if np.abs(scores).max() >= 10 else 2
    seeds = f"{len(scores)}"
    sampled = "sampled actions" if pair.is_sampled else ""
    earlier = "" if "program" in raw else ", earlier program"
    if pair.bar is not None:
        seeds = f"{(scores >= pair.bar).sum()} of {seeds} reach {pair.bar:g}"
    return {
        "script": f"[`{pair.file}`]({os.path.relpath(pair.path, folder)})",
        "environment": ", ".join(filter(None, [pair.env, pair.preset, pair.flags and f"`{pair.flags}`", sampled])),
        "env steps per seed": f"{raw['eval_env_steps'][-1]:,}",
        "IQM": f"{x['iqm']:.{digits}f}",
        "95 % interval": f"{x['ci_low']:.{digits}f} to {x['ci_high']:.{digits}f}",
        "mean": f"{x['mean']:.{digits}f}",
        "worst quarter": f"{x['worst_quarter']:.{digits}f}",
        "worst seed": f"{x['min']:.{digits}f}",
        "failed seeds": "{} of {}, {:.1%} to {:.1%}".format(failed.sum(), len(failed), *wilson(failed)[1:]),
        "seeds": seeds,
        "random actions": f"{raw['random_episode_return']:.{digits}f}",
        "best published": pair.published,
        "time": (f"{raw['timing']['wall_seconds']:.0f} s" if raw["timing"] else "not timed") + earlier,
    }


def restamped(raws: dict[Pair, dict[str, Any]]) -> list[str]:
    """How many rows were recorded with a program that computed the same as the last one compared, and which were not.

    Rows without a comparison had that program already, or were trained later.
    """
    rows = {pair: raw.get("restamped") for pair, raw in raws.items() if raw["device"].endswith("cpu")}
    equal, rounded, same = (sum(found == kind for found in rows.values()) for kind in (*EQUAL, None))
    others = [f"`{pair.name}`" for pair, found in rows.items() if found not in (*EQUAL, None)]
    counts = f"{equal} rows are bit-equal, {rounded} equal to rounding, {same} recorded with it or later."
    return [counts, f"Another program than the one compared: {', '.join(others) or 'none'}."]


def achievement_table(measured: dict[Pair, dict[str, Any]]) -> list[str]:
    """A Markdown table of what was achieved at all, most often first, with a column for each row that has it."""
    columns = {pair: raw["achievements"] for pair, raw in measured.items() if "achievements" in raw}
    best = {name: max(x.get(name, 0.0) for x in columns.values()) for x in columns.values() for name in x}
    names = sorted((name for name in best if best[name] > 0), key=lambda name: -best[name])
    titles = [f"`{' '.join(filter(None, [pair.file, pair.flags]))}`" for pair in columns]
    rows = [(name.replace("_", " "), *(f"{x.get(name, 0.0):.1f}" for x in columns.values())) for name in names]
    return markdown(("achievement", *titles), rows)


def option_table(measured: dict[Pair, dict[str, Any]], raws: dict[Pair, dict[str, Any]]) -> list[str]:
    """A Markdown table of the options: each beside the first seeds of the row of its preset, as many as it has."""
    measures = "IQM", "worst seed", "seeds"
    columns = ("script", "environment", "changed", "IQM of the preset", *measures, "P(changed > preset)")
    lines = []
    for pair, raw in measured.items():
        row, base = cells(pair, raw, FOLDER), replace(pair, changes=())
        (preset,) = (raws[other] for other in raws if other.name == base.name)
        scores = preset["final_episode_return"][: len(raw["final_episode_return"])]
        preset = preset | {"final_episode_return": scores}
        line = [row["script"], pair.env, f"`{pair.flags}`", cells(base, preset, FOLDER)["IQM"]]
        lines.append([*line, *(row[name] for name in measures), improvement(raw, preset)])
    return markdown(columns, lines)


def beside_dqn(raws: dict[Pair, dict[str, Any]]) -> list[str]:
    """A Markdown table of categorical DQN's rows: each beside that of DQN, of the same env steps."""
    lines, scores = [], ("IQM", "worst seed")
    for pair, raw in raws.items():
        dqn = replace(pair, script="dqn").name
        for base in (other for other in raws if pair.script == "categorical_dqn" and other.name == dqn):
            found = [cells(x, raws[x], FOLDER)[column] for x in (base, pair) for column in scores]
            lines.append([pair.env, *found, improvement(raw, raws[base])])
    titles = ("DQN, IQM", "worst seed", "categorical DQN, IQM", "worst seed", "P(categorical DQN > DQN)")
    return markdown(("environment", *titles), lines)


def improvement(raw: dict[str, Any], base: dict[str, Any]) -> str:
    """The probability that a seed of a row scores higher than one of another row, with its interval."""
    scores = [np.array(x["final_episode_return"]) for x in (raw, base)]
    return "{:.2f}, {:.2f} to {:.2f}".format(*probability_of_improvement([scores]))


def beside_published(raws: dict[Pair, dict[str, Any]]) -> list[str]:
    """A Markdown table of the rows with a published number: the share of our seeds that score higher than it."""
    columns = ("script", "environment", "env steps per seed", "IQM", "95 % interval", "worst quarter")
    lines, shares = [], []
    for pair, raw in raws.items():
        if pair.best is not None:
            row, scores = cells(pair, raw, HOW_GOOD.parent), np.array(raw["final_episode_return"])
            shares.append(wilson(wins(scores, pair.best)))
            share = "{:.2f}, {:.2f} to {:.2f}".format(*shares[-1])
            lines.append([*(row[name] for name in columns), pair.published, f"{len(scores)}", share])
    better, worse = sum(low > 0.5 for _, low, _ in shares), sum(high < 0.5 for _, _, high in shares)
    rest = f"in {len(shares) - better - worse} the interval of P has 0.5 in it"
    counts = f"Ours are better in {better} rows and worse in {worse}; {rest}."
    return [counts, "", *markdown((*columns, "published", "seeds", "P(ours > best published)"), lines)]


def aggregate_table(raws: dict[Pair, dict[str, Any]]) -> list[str]:
    """A Markdown table of the normalised returns over all environments of a script, and the picture of their curves."""
    rows = []
    for script, samples in normalized_returns(raws).items():
        finals = [x[:, -1] for x in samples]
        values = [(f"{x:.3f}", f"{low:.3f} to {high:.3f}") for x, low, high in (aggregate_iqm(finals), beats(finals))]
        rows.append((f"`{script}.py`", f"{len(samples)}", *values[0], *values[1]))
    columns = ("script", "environments", "IQM", "95 % interval", "P(ours > published)", "95 % interval")
    return [*markdown(columns, rows), "", "![IQM over seeds and environments](results/aggregate.png)"]


def beats(scores: list[np.ndarray]) -> tuple[float, float, float]:
    """Probability that a random seed scores above 1, the mean over environments, and its 95 % interval; [num_seeds]
    for each environment."""
    won = [wins(x, 1.0) for x in scores]
    low, high = bootstrap_interval(won, mean_share)
    return float(mean_share(*won)), float(low), float(high)


def speed_table() -> list[str]:
    """A Markdown table of speed-gpu.csv."""
    with (FOLDER / "results" / "speed-gpu.csv").open(newline="") as file:
        lines = [list(row.values()) for row in csv.DictReader(file)]
    rows = [(f"`{case}`", name, n, f"{float(rate):,.0f}", ratio) for case, name, n, _, rate, ratio, *_ in lines]
    return markdown(("case", "library", "seeds", "env steps/s", "ours over theirs"), rows)
