"""Numbers in the prose of the pages are those of the recorded files; tables that a tool makes are in test_results."""

import csv
import importlib
import json
import re

import numpy as np
import pytest
from helpers import ROOT, SCRIPTS

from runner.report.statistics import confidence_interval, iqm

RESULTS = ROOT / "benchmarks" / "results"


class Row:
    """What is said of a row of RESULTS.md."""

    def __init__(self, name):
        raw = json.loads((RESULTS / "raw" / f"{name}.json").read_text())
        self.scores = np.array(raw["final_episode_return"])
        self.iqm, self.worst, self.seconds = iqm(self.scores), self.scores.min(), raw["timing"].get("wall_seconds")
        self.training_seconds = raw["timing"].get("training_seconds")

    def below(self, score):
        return f"{count(int((self.scores < score).sum()))} of {len(self.scores)} seeds"


def count(n):
    return ["none", "one", "two", "three", "four"][n] if n < 5 else f"{n}"


SENTENCES = {  # page -> [row of it -> a sentence, for each row]
    "docs/dqn.md": [
        ("dqn-CartPole-v1-n_step-1", lambda x: f"On CartPole-v1 {x.below(475)} end below 475 with one-step returns"),
        ("dqn-Seaquest-MinAtar", lambda x: f"by a factor of up to {x.scores.max() / x.scores.min():.1f}"),
    ],
    "docs/pqn.md": [
        ("pqn-CartPole-v1", lambda x: f"On CartPole-v1 {x.below(475)} ends below 475"),
        ("pqn-Asterix-MinAtar-small", lambda x: f"on Asterix ({x.iqm:.1f} and"),
        ("dqn-Asterix-MinAtar", lambda x: f" {x.iqm:.1f}) and"),
        ("pqn-Freeway-MinAtar-small", lambda x: f"on Freeway ({x.iqm:.1f} and"),
        ("dqn-Freeway-MinAtar", lambda x: f" {x.iqm:.1f}), for which"),
        ("pqn-SpaceInvaders-MinAtar-small", lambda x: f"on SpaceInvaders ({x.iqm:.1f} and"),
        ("dqn-SpaceInvaders-MinAtar", lambda x: f" {x.iqm:.1f}), and less"),
        ("pqn-Seaquest-MinAtar-small", lambda x: f"Seaquest ({x.iqm:.1f} and"),
        ("dqn-Seaquest-MinAtar", lambda x: f" {x.iqm:.1f}), where"),
        ("pqn-Seaquest-MinAtar-small", lambda x: f"{x.below(6)} ends below 6"),
        ("pqn-Breakout-MinAtar-small", lambda x: f"Breakout take it {x.seconds:.0f} s and"),
        ("dqn-Breakout-MinAtar", lambda x: f"DQN {x.seconds:,.0f} s."),
    ],
    "docs/sac.md": [
        ("sac-MountainCarContinuous-v0-noise_steps-1", lambda x: f"without it {x.below(90)} end below 90"),
    ],
    "docs/td3.md": [
        ("td3-MountainCarContinuous-v0-noise_steps-1", lambda x: f"without it {x.below(90)} end below 90"),
    ],
    "docs/sac_discrete.md": [
        ("sac_discrete-CartPole-v1", lambda x: f"with which {x.below(500)} ends below 500"),
    ],
    "docs/sweeps-and-comparison.md": [
        ("dqn-CartPole-v1-n_step-1", lambda x: f"with one-step returns, where {x.below(475)} end below 475"),
    ],
}


def words(page):
    """The text of a page in one line, without links' addresses and made tables."""
    text = re.sub(r"<!-- made by .*?<!-- end -->", "", (ROOT / page).read_text(), flags=re.DOTALL)
    return " ".join(re.sub(r"\]\([^)]*\)", "]", text).split())


@pytest.mark.parametrize(
    ("page", "row", "sentence"), [(page, *x) for page, sentences in SENTENCES.items() for x in sentences]
)
def test_a_sentence_about_a_row_says_what_its_raw_file_says(page, row, sentence):
    assert sentence(Row(row)) in words(page)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_scores_and_times_in_the_prose_of_results_are_checked(page):
    """By a sentence above: numbers with a sign or a decimal point, seconds and counts of seeds that fail."""
    *_, section = words(page).partition(" ## Results ")
    section = section.partition(" ## ")[0]
    for row, sentence in SENTENCES.get(str(page.relative_to(ROOT)), []):
        section = section.replace(sentence(Row(row)), "")
    numbers = r"(?i)(?<![\w.-])(?:-\d[\d,.]*|\d+\.\d+|[\d,.]+ s\b|(?:one|two|three|four|\d+) of \d+ seeds)"
    assert re.findall(numbers, re.sub("`[^`]*`", "", section)) == []


def test_how_many_seeds_is_computed_from_the_raw_files():
    page = words("docs/sweeps-and-comparison.md")
    for n in (5, 10, 20):
        line = f"| {n} |"
        for name in ("sac-Pendulum-v1", "dqn-CartPole-v1-n_step-1"):
            low, high = confidence_interval(Row(name).scores[:n])
            line += f" {iqm(Row(name).scores[:n]):.1f}, {low:.1f} to {high:.1f} |"
        assert line in page


def test_the_speed_table_is_that_of_the_csv():
    with (RESULTS / "speed.csv").open(newline="") as file:
        rates = {(row["case"], row["contender"]): row for row in csv.DictReader(file)}
    page, cases = (ROOT / "benchmarks" / "README.md").read_text(), 0
    for case, cells in re.findall(r"^\| `([a-z0-9-]+)`: [^|]*\|(.*)\|$", page, re.MULTILINE):
        ours, theirs = rates[case, "ours"], rates[case, "Rejax"]
        line = [ours["lanes"], ours["cores"], *(f"{int(row['env_steps_per_s']):,}" for row in (ours, theirs))]
        assert cells.split("|") == [f" {cell} " for cell in (*line, f"{float(theirs['ratio']):.2f}")]
        cases += 1
    assert cases == sum(contender == "Rejax" for _, contender in rates)
    ratios = sorted(float(row["ratio"]) for (_, contender), row in rates.items() if contender == "Rejax")
    readme = words("README.md")
    assert f"One seed runs on one core, {ratios[0]:.2f} (PPO) to {ratios[-1]:.1f} times (DQN" in readme
    for script in SCRIPTS:
        assert (
            f"{script.upper()}{' trains' * (script == 'ppo')} at {float(rates[f'{script}-16', 'Rejax']['ratio']):.1f}"
            in readme
        )
    pure = rates["ppo-1", "PureJaxRL"]
    assert f"and PPO {pure['ratio']} times as fast as PureJaxRL." in readme
    others = [rates["ppo-1", name]["env_steps_per_s"] for name in ("Stable-Baselines3", "SBX")]
    ratios = [f"{float(rates['ppo-1', name]['ratio']):.1f}" for name in ("Stable-Baselines3", "SBX")]
    page = words("benchmarks/README.md")
    assert f"makes {int(pure['env_steps_per_s']):,} env steps/s, ours {pure['ratio']} times as many" in page
    assert "makes {:,} env steps/s, SBX {:,}; ours {} and {} times as many".format(*map(int, others), *ratios) in page
    rltools = rates["sac-1", "RLtools"]
    assert f"makes {int(rltools['env_steps_per_s']):,} env steps/s; ours {rltools['ratio']} times as many" in page
    assert f"One seed of SAC trains at {rltools['ratio']} times the speed of" in readme
    assert f"(`sac-256`) reaches {rates['sac-256', 'ours']['share_of_peak']} of the matrix product's rate" in page
    for case, sentence in (("sac-buffer-1", "at {} times the speed"), ("sac-buffer-4", "with four seeds at {} times")):
        assert sentence.format(rates[case, "buffer of 10,000"]["ratio"]) in page


def test_the_table_of_environments_is_that_of_the_csv(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    with (RESULTS / "environments.csv").open(newline="") as file:
        lines = [importlib.import_module("environments").line(row) for row in csv.DictReader(file)]
    page = (ROOT / "benchmarks" / "README.md").read_text()
    assert "---|\n" + "\n".join(lines) + "\n\n" in page
    assert len(lines) > 4


def test_the_sentences_about_kept_starts_are_those_of_the_csv():
    with (RESULTS / "environments.csv").open(newline="") as file:
        rows = {row["environment"]: row for row in csv.DictReader(file) if row["reset_period"] != "0"}
    gains = sorted((row["gain"] for row in rows.values()), key=float)
    assert f"is a factor of {gains[0]} to {gains[-1]}." in words("docs/environments.md")
    craftax = rows["craftax/Craftax-Classic-Symbolic-v1"]
    fresh, kept = (round(float(craftax[name])) for name in ("steps_per_s_fresh", "steps_per_s"))
    sentence = f"makes {fresh} env steps per CPU-second with a reset in every step and {kept:,} with kept starts"
    assert sentence in words("docs/traps.md")


def test_the_table_of_kernels_is_that_of_the_csv():
    with (RESULTS / "kernels.csv").open(newline="") as file:
        script, env, _, *columns, _, _ = zip(*csv.reader(file), strict=True)
    lines = [f"| {' | '.join(row)} |" for row in zip(script, env, *columns, strict=True)]
    page = (ROOT / "benchmarks" / "README.md").read_text()
    assert "\n".join([lines[0], "|---" * 5 + "|", *lines[1:]]) + "\n\n" in page
    assert len(lines) > 6


def test_the_sentences_about_a_gpu_are_those_of_its_files():
    ratios = {}
    with (RESULTS / "speed-gpu.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            algorithm = "PPO" if row["case"].startswith("ppo-") else "others"
            ratios.setdefault((algorithm, row["contender"]), []).append(float(row["ratio"]))
    rejax, pure, ours = (ratios[key] for key in (("others", "Rejax"), ("PPO", "PureJaxRL"), ("PPO", "Rejax")))
    page = words("README.md")
    assert f"DQN, SAC and TD3 run at {min(rejax):.1f} to {max(rejax):.1f} times Rejax's speed" in page
    peers = f"{min(pure):.1f} to {max(pure):.1f} times PureJaxRL's speed and {min(ours):.1f} to {max(ours):.1f} times"
    assert f"runs at {peers} Rejax's" in page
    assert f"for 10M env steps each in {Row('ppo-Breakout-MinAtar').training_seconds:.0f} s, without" in page
