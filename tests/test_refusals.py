"""Bad input is refused in one line, before anything is written."""

import json
import os
import platform
from datetime import datetime
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from helpers import ENVS, ROOT, SCRIPTS, call, execute, flags, path_of, small_config, small_run
from runs import FILES, assert_finished, assert_refused, contents, directory_of, one

import runner.files.lock
from runner.files.lock import locked_folder
from runner.options.fields import Options

pytestmark = pytest.mark.usefixtures("folder")

# What is wrong, flags, what the message must name; of all scripts, and of some.
BAD = [
    ("an unknown environment", {"env": "CartPol-v1"}, ["CartPol-v1", "CartPole-v1"]),
    ("less than an iteration", {"total_timesteps": 1}, ["total_timesteps"]),
    ("more than the counters hold", {"total_timesteps": 2**31}, ["total_timesteps"]),
]
_MANY = {"num_envs": 2**30, "num_steps": 1, "total_timesteps": 2**30, "num_seeds": 64}
BAD_OF = {
    "ppo": [
        ("minibatches that do not divide", {"num_minibatches": 3}, ["num_minibatches", 3, 32]),
        ("more than the memory holds", _MANY, ["--num-envs", "memory"]),
    ],
    "dqn": [("more than the memory holds", {"buffer_size": 2 * 10**9, "num_seeds": 64}, ["--buffer-size", "memory"])],
    "sac": [("more than the memory holds", {"buffer_size": 2 * 10**9, "num_seeds": 64}, ["--buffer-size", "memory"])],
    "td3": [("more than the memory holds", {"buffer_size": 2 * 10**9, "num_seeds": 64}, ["--buffer-size", "memory"])],
}


@pytest.mark.parametrize(
    ("script", "changes", "words"),
    [
        pytest.param(script, changes, words, marks=marks, id=f"{script}-{name}")
        for script in SCRIPTS
        for name, changes, words, *marks in BAD + BAD_OF[script]
    ],
)
def test_bad_settings(script, changes, words, folder):
    assert_refused(call(script, *small_run(script), *flags(**changes)), *words)
    assert contents(folder) == {}, "something was left"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--learning-rate", "nan"], "learning_rate must be finite as a float32 (at most 3.4e38), not nan"),
        (["--sweep", "reward-scale=1,2", "--normalize-reward"], "divides by reward_scale, needs it to be 1"),
        (["--sweep", "gamma=0.9,1.5"], "--sweep gamma must be between 0 and 1, not 1.5"),
        (["--sweep", "gamma=0.9,0.95", "--gamma", "0.5"], "--gamma is also swept"),
        (["--sweep", "learning-rate=0.1,0.2", "--learning_rate=0.5"], "--learning-rate is also swept"),
        (["--checkpoint-every", "nan"], "checkpoint_every must be finite as a float32 (at most 3.4e38), not nan"),
        (["--checkpoint-every", "inf"], "checkpoint_every must be finite as a float32 (at most 3.4e38), not inf"),
        (["--num-seeds", "4000000000"], "num_seeds = 4000000000 does not fit an int32"),
        (["--num-seeds", "100000000"], "the metrics of 100,000,000 trials (seeds x settings) take"),
        (["--sweep", "gamma=lin:0.9:0.99:1000000000"], "the metrics of 2,000,000,000 trials (seeds x settings) take"),
        (["--sweep", "gamma=lin:0.9:0.99", "--sweep-samples", "1000000000"], "of 2,000,000,000 trials (seeds x"),
        (["--sweep", "gamma=0.9,0.99", "--sweep-halve", "1"], "sweep_halve must be off or an integer of at least 2"),
        (["--sweep", "gamma=0.9,0.99", "--sweep-halve", "0"], "sweep_halve must be off or an integer of at least 2"),
        (["--sweep-halve", "3"], "--sweep-halve 3 needs a --sweep, whose settings it stops early"),
        (["--sweep", "gamma=lin:0.9:0.99:27", "--sweep-halve", "3", "--total-timesteps", "64"], "only 2 iterations"),
        (["--sweep", "gamma=0.9,0.99", "--sweep-halve", "3", "--eval-episodes", "0"], "chooses by evaluation, which"),
        (["--sweep", "gamma=0.9,0.99", "--sweep-halve", "3", "--no-checkpoint-buffer"], "leave out the flag"),
        (["--rank-by", "mean"], "--rank-by has no effect without a --sweep, whose settings it ranks"),
        (["--eval-every", "-1"], "eval_every must be auto or a number of env steps, at least 0, not -1"),
        (["--eval-sampled", "--eval-episodes", "0"], "--eval-sampled has no effect with eval_episodes = 0"),
        (["--eval-every", "often"], "eval_every must be auto or a number of env steps, at least 0, not often"),
        (["--eval-every", "1e19"], "eval_every must be auto or a number of env steps, at least 0, not 1e19"),
        (["--eval-episodes", "1000000000"], "eval_episodes = 1,000,000,000, but at most "),
        (["--num-envs", "5000000000", "--total-timesteps", "1e9"], "num_envs = 5000000000 does not fit an int32"),
        (["--coordinator", "foo"], "coordinator must be HOST:PORT"),
        (["--coordinator", "foo:bar"], "coordinator must be HOST:PORT"),
        (["--coordinator", "foo:99999"], "coordinator must be HOST:PORT"),
        (["--coordinator", ":1234"], "coordinator must be HOST:PORT"),
        (["--name", ".."], "name must be the name of one folder"),
        (["--name", "/abs/path"], "name must be the name of one folder"),
        (["--name", "a/b"], "name must be the name of one folder"),
        (["--name", "a\nb"], "name must be the name of one folder"),
        (["--name", "   "], "name must not begin or end with a space, as '   ' does"),
        (["--name", "a "], "name must not begin or end with a space, as 'a ' does"),
        (["--name", "x" * 300], "cannot write to"),
    ],
    ids=lambda x: " ".join(x)[:60] if isinstance(x, list) else "",
)  # fmt: skip
def test_input_that_is_refused_in_one_line(words, message, folder):
    assert_refused(call("ppo", *small_run("ppo"), *words), message)
    assert contents(folder).keys() <= {folder / "runs", folder / "runs/ppo", folder / "runs/ppo/CartPole-v1"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--buffer-size", "100000000000"], "buffer_size = 100000000000 does not fit an int32"),
        (["--buffer-size", "2000000000"], "the state of 1 trial (a seed of a setting) takes "),
        (["--epsilon-end", "2"], "epsilon_end must be between 0 and 1, not 2.0"),
        (["--tau", "2"], "tau must be above 0 and at most 1, not 2.0"),
        (
            ["--sweep", "epsilon-end=0.1,0.3", "--epsilon-start", "0.2"],
            "epsilon_start must be at least epsilon_end, not epsilon_start = 0.2",
        ),
        (
            ["--sweep", "epsilon-end=0.1,0.5", "--sweep", "epsilon-start=0.3,0.9"],
            "epsilon_start must be at least epsilon_end, not epsilon_start = 0.3",
        ),
    ],
)
def test_input_that_dqn_refuses_in_one_line(words, message, folder):
    assert_refused(call("dqn", *small_run("dqn"), *words), message)
    assert contents(folder) == {}


@pytest.mark.slow
@pytest.mark.parametrize("text", ["1280", "1_280", "1.28e3", "128e1"])
def test_integers_may_be_written_as_people_write_them(text):
    result = call("ppo", *small_run("ppo", eval_episodes=0), "--total-timesteps", text, "--name", "x")
    assert_finished(result)
    assert json.loads((directory_of("ppo", "x") / "config.json").read_text())["config"]["total_timesteps"] == 1280


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--num-envs", "many"], "--num-envs"),
        (["--num-envs", "1e99999999"], "--num-envs"),
        (["--hidden-sizes", "8", "8.5"], "--hidden-sizes"),
        (["--num-seeds", "2.5"], "--num-seeds"),
        (["--gamma", "high"], "--gamma"),
        (["--activation", "step"], "--activation"),
        (["--no-such-flag", "1"], "--no-such-flag"),
        (["--num-seeds", "0"], "num_seeds"),
        (["--seed", "-1"], "seed"),
        (["--seed", str(2**31)], "seed"),
        (["--checkpoint-every", "-1"], "checkpoint_every"),
    ],
)
@one
def test_flags_that_cannot_be_read(script, words, name, folder):
    result = call(script, *small_run(script), *words)
    assert result.status == 2
    assert name in result.stderr
    assert "Traceback" not in result.stderr + result.stdout
    assert contents(folder) == {}, "something was left"


@one
def test_a_flag_without_its_value(script, folder):
    result = call(script, *small_run(script), "--env")
    assert result.status == 2
    assert "--env" in result.stderr
    assert "Traceback" not in result.stderr
    assert contents(folder) == {}


@pytest.mark.parametrize(
    ("where", "mistake", "message"),
    [
        ("init", lambda: jnp.where(jnp.ones(3) > 0, jnp.ones(4), 0.0), "ValueError: Incompatible shapes"),
        ("step", lambda: jnp.where(jnp.ones(3) > 0, jnp.ones(4), 0.0), "ValueError: Incompatible shapes"),
        ("step", lambda: jnp.ones(3) + "1", "TypeError: "),
    ],
)
def test_a_mistake_in_a_changed_script_keeps_its_traceback(where, mistake, message, monkeypatch, folder):
    import ppo

    def make(config):
        def mistaken(*args):
            return mistake()

        return made(config)._replace(**{where: mistaken})

    made = ppo.make
    monkeypatch.setattr(ppo, "make", make)
    result = call("ppo", *small_run("ppo", name="mistaken"))
    assert result.status == 1
    assert "in mistaken" in result.stderr
    assert message in result.stderr
    assert not (folder / directory_of("ppo", "mistaken")).exists(), "the same --name could not be used again"


@pytest.mark.slow
def test_a_mistake_in_make_keeps_its_traceback(folder):
    """The kit's own refusals, which `make` passes on, do not."""
    start = "    config = validate(config)\n"
    text = Path(path_of("ppo")).read_text()
    assert text.count(start) == 1
    Path("mine.py").write_text(text.replace(start, f"{start}    rows, parts = 1, 2, 3\n"))
    result = execute("mine.py", *small_run("ppo"), cwd=folder, PYTHONPATH=str(ROOT))
    assert result.status == 1
    assert "in make\n    rows, parts = 1, 2, 3\n" in result.stderr
    assert not Path("runs").exists()


@pytest.mark.slow
@one
def test_bad_input_in_a_process_of_its_own(script, folder):
    result = execute(path_of(script), "--env", "CartPol-v1", cwd=folder)
    assert_refused(result, "CartPole-v1")
    assert result.stdout == ""
    assert contents(folder) == {}


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        (jax.disable_jit, "a run consists of compiled programs, which JAX_DISABLE_JIT forbids"),
        (lambda: jax.debug_nans(True), "episode_return is NaN where no episode ended, and JAX_DEBUG_NANS would stop"),
    ],
)
def test_modes_of_jax_that_a_run_cannot_have(mode, message, folder):
    with mode():
        result = call("ppo", *small_run("ppo"))
    assert_refused(result, message)
    assert contents(folder) == {}


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cuda", "nonsense"])
@one
def test_a_platform_that_is_not_here(script, platform, folder):
    if platform == "cuda" and jax.default_backend() == "gpu":
        pytest.skip("it is here")
    result = execute(path_of(script), cwd=folder, JAX_PLATFORMS=platform)
    assert_refused(result, f"JAX_PLATFORMS={platform}: no such device here")
    assert contents(folder) == {}


@pytest.mark.parametrize("place", ["runs", "runs/{script}", "runs/{script}/{env}", "runs/{script}/{env}/taken"])
@one
def test_results_that_have_no_place(script, place, folder):
    path = folder / place.format(script=script, env=ENVS[script][0])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("a file")
    before = contents(folder)
    assert_refused(call(script, *small_run(script, name="taken")), directory_of(script, "taken"), "--out")
    assert contents(folder) == before


@pytest.mark.slow
@one
def test_a_name_that_is_taken(script, undisturbed, monkeypatch):
    _, arguments, directory = undisturbed
    before = contents(directory)
    monkeypatch.chdir(directory.parents[3])
    assert_refused(call(script, *arguments), directory_of(script, "undisturbed"), "--name", "--resume")
    assert contents(directory) == before


@pytest.mark.slow
@one
def test_two_runs_may_start_in_the_same_second(script, folder, monkeypatch):
    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 3, 4, 5)

    monkeypatch.setattr(runner.files.lock, "datetime", Clock)
    for _ in range(2):
        assert_finished(call(script, *small_run(script, eval_episodes=0)))
    assert len(list(Path("runs", script, ENVS[script][0]).iterdir())) == 2


@one
def test_a_run_that_is_not_there(script, folder):
    assert_refused(call(script, "--resume", "nowhere"), "nowhere")
    (folder / "empty").mkdir()
    assert_refused(call(script, "--resume", "empty"), "empty")
    (folder / "file").write_text("")
    assert_refused(call(script, "--resume", "file"), "no run in file")
    for words in (["--resume", ""], ["--resume="]):
        assert_refused(call(script, *small_run(script), *words), "resume must be the folder of a run, not empty")
    assert contents(folder).keys() == {folder / "empty", folder / "file"}


@pytest.mark.slow
@one
def test_a_run_that_is_being_trained_is_not_resumed(script, undisturbed, finished):
    with locked_folder(script, ENVS[script][0], Options(resume=str(finished))):
        before = contents(finished)
        result = call(script, "--resume", str(finished))
        assert_refused(
            result, f"{finished} is being trained by process {os.getpid()} since 20", f"(on {platform.node()})"
        )
        assert contents(finished) == before
    assert_finished(call(script, "--resume", str(finished), *flags(eval_episodes=2)))
    assert {path.name for path in finished.iterdir()} == FILES


@one
def test_a_name_under_which_a_run_begins_is_taken(script, folder):
    with locked_folder(script, ENVS[script][0], Options(name="same")) as directory:
        assert_refused(call(script, *small_run(script, name="same")), f"{directory} is being trained by process ")
        assert [path.name for path in directory.iterdir()] == ["training.lock"]


CHANGED = {
    "num_seeds": 3,
    "seed": 1,
    "gamma": 0.5,
    "hidden_sizes": (8, 8),
    "normalize_obs": False,
    "env": "MountainCar-v0",
    "learning_rate": 0.125,
    "total_timesteps": 1,
    "matmul_precision": "tf32",
    "eval_sampled": True,
}


@pytest.mark.slow
@pytest.mark.parametrize("field", CHANGED)
@one
def test_resuming_with_other_settings(script, field, finished):
    options = {"num_seeds": 2, "seed": 0, "matmul_precision": "float32", "eval_sampled": False}
    settings, new = vars(small_config(script)) | options, CHANGED[field]
    if field == "learning_rate":  # SAC and TD3 have two
        field = next(name for name in settings if name.endswith("learning_rate"))
    old = settings[field]
    before = contents(finished)
    result = call(script, "--resume", str(finished), *flags(**{field: new}))
    assert_refused(result, finished, field, old, new)
    assert contents(finished) == before


@pytest.mark.slow
@one
def test_resuming_a_run_of_another_algorithm(script, finished):
    other = "td3" if script == "dqn" else "dqn"
    before = contents(finished)
    assert_refused(call(other, "--resume", str(finished)), finished, script, other)
    assert contents(finished) == before
