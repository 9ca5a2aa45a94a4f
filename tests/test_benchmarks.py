"""The benchmarks run as benchmarks/README.md says, and its tables are those of the recorded files."""

import collections
import csv
import importlib
import json
import re
import sys

import numpy as np
import pytest
from helpers import ROOT, execute

from common.environment import make_env
from runner.main import parse_command_line
from runner.report.statistics import confidence_interval, iqm

sys.path.append(str(ROOT / "benchmarks"))

import environments
import gymnasium_scores
import settings
import speed
import start
import tables

RESULTS = ROOT / "benchmarks" / "results"
README = (ROOT / "benchmarks" / "README.md").read_text()


def rows_of(name):
    with (RESULTS / name).open(newline="") as file:
        return list(csv.DictReader(file))


# -- Programs ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_cost_of_environments(tmp_path):
    script, flags = str(ROOT / "benchmarks" / "environments.py"), ["--only", "CartPole-v1", "--seconds", "0.01"]
    result = execute(script, *flags, "--num-envs", "2", "--out", "costs.csv", cwd=tmp_path, PYTHONPATH=None)
    assert result.status == 0, result
    with open(tmp_path / "costs.csv") as file:
        (row,) = csv.DictReader(file)
    assert row["environment"] == "CartPole-v1"
    assert float(row["steps_per_s"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("cases", [speed.CASES, speed.GPU_CASES], ids=["cpu", "gpu"])
def test_the_scripts_take_the_settings_of_every_case(cases, monkeypatch):
    """Environments of Playground and Brax, which take ten seconds each to make, are replaced by another."""
    assert len({case.name for case in cases}) == len(cases)
    for contender in (contender for case in cases for contender in case.contenders if not contender.peer):
        module = importlib.import_module(contender.script)
        config = module.Config(**contender.settings)
        known = "Pendulum-v1" if "/" in config.env else config.env
        monkeypatch.setattr(module, "make_env", lambda env, known=known: make_env(known))
        module.make(config)
        assert config.num_iterations > 0


@pytest.mark.parametrize("name", start.CHOSEN)
def test_the_command_of_a_start_has_the_settings_of_its_case(name, monkeypatch):
    """A preset of the environment would set others."""
    contender = next(case for case in speed.CASES if case.name == name).contenders[0]
    module = importlib.import_module(contender.script)
    monkeypatch.setattr("sys.argv", start.command(contender, "python")[1:])
    config, *_ = parse_command_line(module.__file__, module.Config)
    assert config == module.Config(**contender.settings)


def test_seconds_at_once_count_once():
    assert start.length([(3.0, 4.0), (0.0, 2.0), (1.0, 1.5), (1.0, 3.0)]) == 4.0


@pytest.mark.slow
def test_a_worker_runs_a_script():
    given = {"num_envs": 2, "num_steps": 8, "num_minibatches": 2, "hidden_sizes": (4,), "total_timesteps": 32}
    worker = speed.Worker(speed.Contender("ours", "ppo", given), speed.Case("small", 3, 1), sys.executable)
    worker.wait()
    worker.run()
    worker.close()
    assert worker.ready["num_steps"] == 3 * 32
    assert worker.median("seconds") > 0


def test_scores_are_told_apart_by_the_swept_value(tmp_path, monkeypatch):
    """The command line writes trials in its own order."""
    study = settings.Study("ppo", "CartPole-v1", 2, {"learning_rate": ()})
    rates = np.float32(settings.values(study, "learning_rate"))[::-1].repeat(2)

    def call(command):
        folder = tmp_path / "ppo" / "CartPole-v1" / "learning_rate"
        folder.mkdir(parents=True)
        returns = np.stack([np.zeros(len(rates)), 1000 * rates], axis=1)
        np.savez(folder / "metrics.npz", sweep_learning_rate=rates, eval_episode_return=returns)
        (folder / "config.json").write_text('{"git_commit": "abc"}')

    monkeypatch.setattr(settings, "call", call)
    raw = settings.sweep(study, "learning_rate", tmp_path)
    assert study.preset("learning_rate") in raw["values"]
    np.testing.assert_allclose(raw["returns"], np.stack([1000 * np.array(raw["values"])] * 2, axis=1), rtol=1e-3)
    assert f"--seed 1000 --sweep learning-rate={','.join(map(str, raw['values']))}" in raw["command"]


# -- Tables ------------------------------------------------------------------------------------------------------------


def test_the_table_of_gymnasium_is_made_from_the_recorded_scores():
    rows, page = gymnasium_scores.read_rows(), gymnasium_scores.PAGE.read_text()
    assert gymnasium_scores.with_table(page, gymnasium_scores.BEGIN, gymnasium_scores.table(rows)) == page
    counts = collections.Counter(row["row"] for row in rows)
    pairs = {name: pair for name, pair in gymnasium_scores.PAIRS.items() if pair.path.exists()}
    assert counts == {name: min(pair.num_seeds, gymnasium_scores.MAX_SEEDS) for name, pair in pairs.items()}


def test_tables_of_settings_are_made_from_the_recorded_scores():
    raws = tables.read(settings.RAW)
    assert tables.dump(raws) == settings.RAW.read_text()
    assert raws.keys() == {study.script for study in settings.STUDIES}
    for study in settings.STUDIES:
        page = (ROOT / "docs" / f"{study.script}.md").read_text()
        assert page.count(settings.BEGIN) == 1
        assert tables.with_table(page, settings.BEGIN, settings.lines(study, raws[study.script])) == page
        for x in raws[study.script].values():
            assert [len(row) for row in x["returns"]] == [study.num_seeds] * len(x["values"])


def test_the_table_of_environments_is_that_of_the_csv():
    lines = [environments.line(row) for row in rows_of("environments.csv")]
    assert "---|\n" + "\n".join(lines) + "\n\n" in README


def test_the_table_of_kernels_is_that_of_the_csv():
    lines = [list(row.values()) for row in rows_of("kernels.csv")]
    table = "\n".join(f"| {' | '.join([*row[:2], *row[3:6]])} |" for row in lines)
    assert "|---" * 5 + "|\n" + table + "\n\n" in README


def test_the_table_of_speeds_is_that_of_the_csv():
    rates = {(row["case"], row["contender"]): row for row in rows_of("speed.csv")}
    found = re.findall(r"^\| `([a-z0-9-]+)`: [^|]*\|(.*)\|$", README, re.MULTILINE)
    for case, cells in found:
        ours, theirs = rates[case, "ours"], rates[case, "Rejax"]
        line = [ours["seeds"], ours["cores"], *(f"{int(row['env_steps_per_s']):,}" for row in (ours, theirs))]
        assert cells.split("|") == [f" {cell} " for cell in (*line, f"{float(theirs['ratio']):.2f}")]
    assert len(found) == sum(contender == "Rejax" for _, contender in rates)


def test_the_table_of_how_many_seeds_is_that_of_the_raw_files():
    page = (ROOT / "docs" / "sweeps-and-comparison.md").read_text()
    for n in (5, 10, 20):
        line = f"| {n} |"
        for name in ("sac-Pendulum-v1", "dqn-CartPole-v1-n_step-1"):
            scores = np.array(json.loads((RESULTS / "raw" / f"{name}.json").read_text())["final_episode_return"][:n])
            line += " {:.1f}, {:.1f} to {:.1f} |".format(iqm(scores), *confidence_interval(scores))
        assert line in page
