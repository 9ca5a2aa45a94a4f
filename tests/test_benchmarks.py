"""The benchmarks run as benchmarks/README.md says: no path is set."""

import collections
import csv
import importlib
import sys

import numpy as np
import pytest
from helpers import ROOT, execute

from common.environment import make_env


def fixture_of(name):
    """The module benchmarks/<name>.py, with the folders in the path that it has as a program."""

    @pytest.fixture(name=name)
    def module(monkeypatch):
        for folder in ("benchmarks", "variants"):
            monkeypatch.syspath_prepend(ROOT / folder)
        return importlib.import_module(name)

    return module


speed, gymnasium_scores, settings = map(fixture_of, ("speed", "gymnasium_scores", "settings"))


@pytest.mark.slow
def test_the_cost_of_environments(tmp_path):
    script, flags = str(ROOT / "benchmarks" / "environments.py"), ["--only", "CartPole-v1", "--seconds", "0.01"]
    result = execute(script, *flags, "--num-envs", "2", "--out", "costs.csv", cwd=tmp_path, PYTHONPATH=None)
    assert result.status == 0, result
    with open(tmp_path / "costs.csv") as file:
        (row,) = csv.DictReader(file)
    assert row["environment"] == "CartPole-v1"
    assert float(row["steps_per_s"]) > 0


PROGRAM = """
HloModule jit_step

%fused_add (p.1: f32[4]) -> f32[4] {
  %p.1 = f32[4]{0} parameter(0)
  ROOT %add.9 = f32[4]{0} add(%p.1, %p.1)
}

%body.1 (p.2: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p.2 = (s32[], f32[4]{0}) parameter(0)
  %x.1 = f32[4]{0} get-tuple-element(%p.2), index=1
  %loop_add_fusion = f32[4]{0} fusion(%x.1), kind=kLoop, calls=%fused_add, metadata={op_name="jit(step)/add"}
  %copy-start.1 = (f32[4]{0}, f32[4]{0}, u32[]) copy-start(%loop_add_fusion)
  ROOT %tuple.1 = (s32[], f32[4]{0}) tuple(%x.1, %loop_add_fusion)
}

ENTRY %main.7 (p.3: f32[4]) -> f32[4] {
  %p.3 = f32[4]{0} parameter(0)
  %sort.1 = f32[4]{0} sort(%p.3), dimensions={0}
  %while.1 = (s32[], f32[4]{0}) while(%p.3), condition=%c, body=%body.1, backend_config={"known_trip_count":{"n":"5"}}
  ROOT %y = f32[4]{0} get-tuple-element(%while.1), index=1
}
"""


@pytest.mark.slow
def test_kernels_of_a_program_are_counted_once_for_each_round(tmp_path):
    """A sort, then five rounds of a fusion and a copy; what is inside of a fusion is no kernel of its own."""
    (tmp_path / "count.py").write_text(
        f"import sys; sys.path.insert(0, {str(ROOT / 'benchmarks')!r})\n"
        "import kernels\n"
        f"found = kernels.count(*kernels.read_computations({PROGRAM!r}))\n"
        "print([(depth, name, len(lines), rounds) for depth, name, lines, rounds in found])\n"
    )
    result = execute("count.py", cwd=tmp_path)
    assert result.stdout.strip() == "[(0, 'main.7', 1, 1), (1, 'body.1', 2, 5)]", result


BYTES = {"argument": 7, "output": 6, "alias": 5, "temp": 3}  # alias: results that overwrite an argument
BYTES = {f"{name}_size_in_bytes": size for name, size in BYTES.items()}


@pytest.mark.slow
def test_the_memory_of_a_preset(tmp_path):
    """State and temporaries, and whether they fit; the fields are those of the preset, of a named one, or changed."""
    (tmp_path / "small.py").write_text(
        f"import sys; sys.path.insert(0, {str(ROOT / 'benchmarks')!r})\n"
        "from types import SimpleNamespace\n"
        "import kernels\n"
        f"memory = SimpleNamespace(**{BYTES!r})\n"
        "print(kernels.count_bytes(SimpleNamespace(memory_analysis=lambda: memory)))\n"
        "print(kernels.describe_bytes(1.5 * 2**30), kernels.describe_bytes(70 * 2**30), sep=', ')\n"
        "read = lambda *words: kernels.read_config('ppo', *words).total_timesteps\n"
        "env = 'Breakout-MinAtar'\n"
        "print(read(env, '', {}), read(env, 'small', {}), read(env, '', {'total_timesteps': 9000}))\n"
        "sys.argv = ['kernels.py', 'ppo', '--env', env, '--preset', 'tiny']\n"
        "kernels.main()\n"
    )
    result = execute("small.py", cwd=tmp_path)
    lines = ["11", "1.5, 70, more than the 59.3 that JAX takes", "10000000 1000000 9000"]
    assert result.stdout.splitlines() == lines, result
    assert (result.status, result.stderr.splitlines()[-1]) == (
        2,
        "kernels.py: error: presets/ppo.toml has no preset tiny for Breakout-MinAtar, only small",
    )


@pytest.mark.slow
@pytest.mark.parametrize("cases", ["CASES", "GPU_CASES"])
def test_the_scripts_take_the_settings_of_every_case(speed, cases, monkeypatch):
    """Except for the name of the environment: to make those of Playground and Brax takes ten seconds each."""
    names = [case.name for case in getattr(speed, cases)]
    assert len(set(names)) == len(names)
    for case in getattr(speed, cases):
        for contender in case.contenders:
            if not contender.peer:
                module = importlib.import_module(contender.script)
                config = module.Config(**contender.settings)
                known = "Pendulum-v1" if "/" in config.env else config.env
                monkeypatch.setattr(module, "make_env", lambda env, known=known: make_env(known))
                module.make(config)
                assert config.num_iterations > 0


@pytest.mark.slow
def test_a_worker_runs_a_script(speed):
    settings = {"num_envs": 2, "num_steps": 8, "num_minibatches": 2, "hidden_sizes": (4,), "total_timesteps": 32}
    worker = speed.Worker(speed.Contender("ours", "ppo", settings), speed.Case("small", 3, 1), sys.executable)
    worker.wait()
    worker.run()
    worker.close()
    assert worker.ready["num_steps"] == 3 * 32
    assert worker.median("seconds") > 0


@pytest.mark.slow
def test_a_worker_runs_purejaxrl_in_float32_without_its_suites_whatever_it_prints(speed, tmp_path, monkeypatch):
    (tmp_path / "purejaxrl").mkdir()
    (tmp_path / "purejaxrl" / "ppo.py").write_text("""
import jax, navix
from brax import envs
from brax.envs.wrappers.training import AutoResetWrapper

print("not an answer")

def make_train(config):
    assert jax.config.jax_default_matmul_precision == "float32"
    return lambda key: jax.random.normal(key, (config["NUM_ENVS"],))
""")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (contender,) = (x for x in speed.GPU_CASES[0].contenders if x.name == "PureJaxRL")
    worker = speed.Worker(contender, speed.Case("small", 3, 1), sys.executable)
    worker.wait()
    worker.run()
    worker.close()
    assert worker.ready["num_steps"] == 3 * contender.settings["TOTAL_TIMESTEPS"]


def test_bars_are_told_apart_without_colour_and_their_numbers_are_over_rejax(speed, monkeypatch):
    figures = []
    monkeypatch.setattr(speed.Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    row = {"case": "ppo-1", "lanes": "1"}
    peers = {"ours": (300, 1.0), "PureJaxRL": (250, 1.2), "Rejax": (100, 3.0), "sb3": (3, 100.0)}
    rows = [row | {"contender": name, "env_steps_per_s": x, "ratio": ratio} for name, (x, ratio) in peers.items()]
    speed.plot([*rows, rows[0] | {"case": "ppo-20", "lanes": "20"}], None)
    axes, _ = figures[0].axes
    assert len({bar.get_hatch() for bar in axes.patches[:3]}) == 3
    (text,) = axes.texts
    assert text.get_text() == "3.0"
    assert text.xy == pytest.approx((axes.patches[0].get_center()[0], 300))
    assert "times Rejax" in figures[0].legends[0].get_title().get_text()


@pytest.mark.slow
def test_a_worker_that_dies_says_why(speed):
    worker = speed.Worker(speed.Contender("ours", "nothing", {}), speed.Case("small", 1, 1), sys.executable)
    with pytest.raises(SystemExit, match=r"No module named 'nothing'\nerror: the worker died: .*worker\.py nothing 1"):
        worker.wait()
    worker.close()


@pytest.mark.slow
def test_a_case_that_is_not_there(tmp_path):
    result = execute(str(ROOT / "benchmarks" / "speed.py"), "--gpu", "--only", "ppo-3", cwd=tmp_path, PYTHONPATH=None)
    assert result.status == 2
    assert "error: --only: the cases are ppo-1, ppo-16, ppo-128, ppo-2048, dqn-1, " in result.stderr


# -- Gymnasium ---------------------------------------------------------------------------------------------------------


def test_the_table_of_gymnasium_is_made_from_the_recorded_scores(gymnasium_scores):
    rows, page = gymnasium_scores.read_rows(), gymnasium_scores.PAGE.read_text()
    assert page.count(gymnasium_scores.BEGIN) == 1
    assert gymnasium_scores.with_table(page, gymnasium_scores.BEGIN, gymnasium_scores.table(rows)) == page
    counts = collections.Counter(row["row"] for row in rows)
    assert counts == {name: pair.num_seeds for name, pair in gymnasium_scores.PAIRS.items()}


def test_a_score_in_gymnasium_is_subtracted(gymnasium_scores):
    scores = [(500.0, 498.0), (400.0, 399.0), (300.0, 301.0), (500.0, 498.0)]
    rows = [{"row": "ppo/CartPole-v1", "gymnax": str(a), "gymnasium": str(b)} for a, b in scores]
    *_, line = gymnasium_scores.table(rows)
    _, name, ours, theirs, difference, probability, _ = line.split("|")
    assert [cell.strip() for cell in (name, ours, theirs)] == ["`ppo/CartPole-v1`", "450.0", "448.5"]
    assert difference.startswith(" +1.00 (")
    assert probability.startswith(" 0.62 (")


# -- Settings ----------------------------------------------------------------------------------------------------------


def test_tables_of_settings_are_made_from_the_recorded_scores(settings):
    raws = settings.read(settings.RAW)
    assert raws.keys() <= {study.script for study in settings.STUDIES}
    for study in settings.STUDIES:
        page = (ROOT / "docs" / f"{study.script}.md").read_text()
        assert page.count(settings.BEGIN) == 1
        if study.script in raws:
            assert settings.with_table(page, settings.BEGIN, settings.lines(study, raws[study.script])) == page
            for x in raws[study.script].values():
                assert [len(row) for row in x["returns"]] == [study.num_seeds] * len(x["values"])


def test_a_study_has_the_value_of_the_preset_among_its_values(settings):
    for study in settings.STUDIES:
        for field in study.fields:
            preset = study.preset(field)
            values = settings.values(study, field)
            assert preset in values
            assert values == sorted(set(values))


def test_scores_are_told_apart_by_the_swept_value(settings, tmp_path, monkeypatch):
    """The command line writes lanes in its own order."""
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
    np.testing.assert_allclose(raw["returns"], np.stack([1000 * np.array(raw["values"])] * 2, axis=1), rtol=1e-3)
    assert f"--seed 1000 --sweep learning-rate={','.join(map(str, raw['values']))}" in raw["command"]
