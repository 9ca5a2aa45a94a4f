"""Which settings matter: each float setting of a script varied alone, the others as in its preset.

    python benchmarks/settings.py                # every script that is not recorded yet
    python benchmarks/settings.py --only ppo td3 # these, again
    python benchmarks/settings.py --report       # tables and pictures of docs/, from the recorded scores alone

Each value is trained on seeds that no result of RESULTS.md uses, 1000 and up, as one sweep of the command line, and
evaluated after training over 32 whole episodes. The scores of all seeds are kept in results/settings.json.
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rows import Pair, make_config
from tables import FOLDER, ROOT, dump, markdown, read, with_table
from training import call

from runner.report.plots import style
from runner.report.statistics import summarize

RAW = FOLDER / "results" / "settings.json"
BEGIN = "<!-- made by benchmarks/settings.py -->"
FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)  # of the preset's value, where a study names no values


@dataclass(frozen=True)
class Study:
    """A script, an environment, and the settings that are varied."""

    script: str
    env: str
    num_seeds: int
    fields: dict[str, tuple[float, ...]]  # name -> values besides the preset's; empty: FACTORS times the preset's

    def preset(self, field: str) -> float:
        """The preset's value of a setting."""
        return getattr(make_config(Pair(self.script, self.env)), field)


RATES = {"actor_learning_rate": (), "critic_learning_rate": (), "tau": ()}
STUDIES = [
    Study(
        "ppo",
        "CartPole-v1",
        8,
        {
            "learning_rate": (),
            "clip_eps": (0.05, 0.2, 0.3, 0.5),
            "gae_lambda": (0.0, 0.5, 0.95, 1.0),
            "gamma": (0.9, 0.95, 0.99, 0.999),
            "ent_coef": (0.0, 0.03, 0.1),
        },
    ),
    Study("ppo_rnn", "MemoryChain-bsuite", 8, {"learning_rate": (), "gae_lambda": (0.0, 0.5, 0.9, 1.0)}),
    Study("pqn", "CartPole-v1", 8, {"learning_rate": (), "q_lambda": (0.0, 0.5, 0.8, 1.0)}),
    Study("reppo", "Pendulum-v1", 4, {"learning_rate": (), "kl_bound": (), "eta": ()}),
    Study("sac", "Pendulum-v1", 4, RATES),
    Study("td3", "Pendulum-v1", 4, {"critic_learning_rate": (), "tau": (), "exploration_noise": (0.0, 0.05, 0.6)}),
    Study("sac_discrete", "CartPole-v1", 4, {"critic_learning_rate": (), "target_entropy": (0.1, 0.6, 0.98)}),
    Study("dqn", "Acrobot-v1", 4, {"learning_rate": ()}),
    Study("categorical_dqn", "CartPole-v1", 4, {"learning_rate": (), "value_max": (50.0, 100.0, 400.0, 800.0)}),
]


def values(study: Study, field: str) -> list[float]:
    """The values of a setting, ascending, the preset's among them."""
    preset = study.preset(field)
    others = study.fields[field] or [float(f"{preset * factor:.2g}") for factor in FACTORS]
    return sorted({*others, preset})


def sweep(study: Study, field: str, out: Path) -> dict[str, Any]:
    """Train all values of a setting: the command, and the scores [num_values][num_seeds]."""
    setting, folder = f"{field.replace('_', '-')}={','.join(map(str, values(study, field)))}", out / study.script
    command = [Pair(study.script, study.env).file, "--env", study.env, "--num-seeds", str(study.num_seeds)]
    command += ["--seed", "1000", "--sweep", setting, "--eval-every", "0"]
    call([*command, "--out", str(out), "--name", field])
    with np.load(folder / study.env / field / "metrics.npz") as metrics:
        swept, scores = metrics[f"sweep_{field}"], metrics["eval_episode_return"][:, -1]
    returns = {value: scores[np.isclose(swept, value, rtol=1e-5)] for value in values(study, field)}
    record = read(folder / study.env / field / "config.json")
    return {
        "command": "python " + " ".join(command),
        "git_commit": record["git_commit"],
        "values": list(returns),
        "returns": [[round(float(x), 2) for x in row] for row in returns.values()],
    }


def lines(study: Study, raw: dict[str, Any]) -> list[str]:
    """Markdown: a table of the scores, and the picture."""
    rows = []
    for field, x in raw.items():
        scores = [summarize(np.array(row)) for row in x["returns"]]
        digits = 2 if np.abs(x["returns"]).max() < 10 else 1
        cells = [f"{s['iqm']:.{digits}f} ({s['min']:.{digits}f})" for s in scores]
        named = [f"**{v:g}**" if v == study.preset(field) else f"{v:g}" for v in x["values"]]
        rows.append([f"`{field}`", ", ".join(f"{v}: {cell}" for v, cell in zip(named, cells, strict=True))])
    table = markdown(("setting", "IQM of the greedy return by value, worst seed in brackets"), rows)
    picture = f"![Greedy return against each setting](pictures/{study.script}-settings.png)"
    text = f"""{study.env}, one setting varied at a time, {study.num_seeds} seeds for each value; the preset's is bold
(`python benchmarks/settings.py --only {study.script}`):"""
    return ["", text, "", *table, "", picture, ""]


def plot(path: Path, study: Study, raw: dict[str, Any]) -> None:
    """A panel for each setting: the IQM over seeds with its 95 % interval, and each seed, against the value."""
    figure = Figure(figsize=(2.5 * len(raw), 2.5), layout="constrained")
    panels = figure.subplots(1, len(raw), squeeze=False, sharey=True).ravel()
    for axes, (field, x) in zip(panels, raw.items(), strict=True):
        places = np.arange(len(x["values"]))  # evenly spaced: some values are 0, some differ by factors
        returns = np.array(x["returns"])  # [num_values, num_seeds]
        scores = [summarize(row) for row in returns]
        axes.plot(places, returns, ".", color="grey", alpha=0.5, markersize=4)
        low, high = ([score[name] for score in scores] for name in ("ci_low", "ci_high"))
        axes.fill_between(places, low, high, color="tab:blue", alpha=0.2, linewidth=0)
        axes.plot(places, [score["iqm"] for score in scores], color="tab:blue", linewidth=1.8)
        axes.axvline(x["values"].index(study.preset(field)), color="black", linewidth=0.8, linestyle=":")
        axes.set_xticks(places, [f"{value:g}" for value in x["values"]], rotation=45, fontsize="small")
        axes.set_title(field, fontsize="medium")
        style(axes)
    panels[0].set_ylabel("greedy return")
    figure.savefig(path, dpi=100)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [study.script for study in STUDIES]
    parser.add_argument("--only", nargs="*", default=[], choices=names, help="scripts, trained again")
    parser.add_argument("--report", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    raws = read(RAW) if RAW.exists() else {}
    for study in STUDIES if not arguments.report else ():
        if study.script in arguments.only or (not arguments.only and study.script not in raws):
            with tempfile.TemporaryDirectory() as out:
                raws[study.script] = {field: sweep(study, field, Path(out)) for field in study.fields}
            RAW.write_text(dump(raws))
    for study in STUDIES:
        if study.script in raws:
            plot(ROOT / "docs" / "pictures" / f"{study.script}-settings.png", study, raws[study.script])
            page = ROOT / "docs" / f"{study.script}.md"
            page.write_text(with_table(page.read_text(), BEGIN, lines(study, raws[study.script])))


if __name__ == "__main__":
    main()
