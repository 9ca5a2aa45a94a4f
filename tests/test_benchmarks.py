"""The benchmarks run as benchmarks/README.md says: no path is set."""

import csv

import pytest
from helpers import ROOT, execute


@pytest.mark.parametrize("name", ["environments", "results", "scaling", "speed"])
def test_a_benchmark_finds_the_modules_of_this_repository(name, tmp_path):
    result = execute(str(ROOT / "benchmarks" / f"{name}.py"), "--help", cwd=tmp_path, PYTHONPATH=None)
    assert (result.status, result.stderr) == (0, ""), result


def test_the_cost_of_environments(tmp_path):
    script, flags = str(ROOT / "benchmarks" / "environments.py"), ["--only", "CartPole-v1", "--seconds", "0.01"]
    result = execute(script, *flags, "--num-envs", "2", "--out", "costs.csv", cwd=tmp_path, PYTHONPATH=None)
    assert result.status == 0, result
    with open(tmp_path / "costs.csv") as file:
        (row,) = csv.DictReader(file)
    assert row["environment"] == "CartPole-v1"
    assert float(row["steps_per_s"]) > 0
