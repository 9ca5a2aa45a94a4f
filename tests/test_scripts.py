"""The promises of every script, whatever its algorithm: seeds, sweeps, metrics, act, value, debug modes, bad input."""

import contextlib
import dataclasses
import functools
import gc
import importlib
import shutil
import sys
import typing
from dataclasses import replace
from functools import cache

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest
from helpers import ENVS

from common.environment import make_env
from runner.files.load import import_script

probes.register()
SCRIPTS = ["ppo", "dqn", "sac", "td3"]

# A short run of each script: three iterations of 24 env steps.
REPLAY = {
    "num_envs": 2,
    "steps_per_iteration": 24,
    "learning_starts": 24,
    "buffer_size": 64,
    "batch_size": 8,
    "hidden_sizes": (8,),
}
SHORT = {
    "ppo": {"num_envs": 2, "num_steps": 12, "num_epochs": 2, "num_minibatches": 2, "hidden_sizes": (8,)},
    "dqn": {**REPLAY, "target_interval": 12, "epsilon_end": 0.1, "exploration_fraction": 1.0},
    "sac": {**REPLAY, "activation": "tanh"},
    "td3": {**REPLAY, "activation": "tanh"},
}
ITERATIONS = 3
# Every float field at another value, at which a short run is different from a default one.
SWEPT = {
    "ppo": {
        "learning_rate": 1e-2,
        "adam_eps": 1e-2,
        "max_grad_norm": 1e-3,
        "gamma": 0.6,
        "gae_lambda": 0.3,
        "clip_eps": 1e-4,
        "vf_coef": 0.1,
        "ent_coef": 0.5,
        "log_std_init": -1.0,
        "reward_scale": 3.0,
    },
    "dqn": {
        "tau": 0.3,
        "learning_rate": 1e-2,
        "adam_eps": 1e-2,
        "max_grad_norm": 1e-3,
        "gamma": 0.6,
        "epsilon_start": 0.5,
        "epsilon_end": 0.45,
        "exploration_fraction": 0.1,
        "reward_scale": 3.0,
    },
    "sac": {
        "tau": 0.3,
        "actor_learning_rate": 1e-2,
        "critic_learning_rate": 1e-2,
        "alpha_learning_rate": 1e-1,
        "alpha": 0.1,
        "target_entropy": 0.5,
        "gamma": 0.6,
        "reward_scale": 3.0,
    },
    "td3": {
        "tau": 0.3,
        "actor_learning_rate": 1e-2,
        "critic_learning_rate": 1e-2,
        "gamma": 0.6,
        "exploration_noise": 0.5,
        "exploration_noise_max": 0.9,
        "reward_scale": 3.0,
        "target_noise": 1.0,
        "target_noise_clip": 0.01,
    },
}
# Environments of which a script takes the actions; where it has both kinds, the tests run in both.
DISCRETE, CONTINUOUS = "Probe-Recorder", "Probe-Recorder-Continuous"
ACTIONS = {"ppo": (DISCRETE, CONTINUOUS), "dqn": (DISCRETE,), "sac": (CONTINUOUS,), "td3": (CONTINUOUS,)}
CASES = [(script, env) for script in SCRIPTS for env in ACTIONS[script]]
OPTIONS = {  # what is off by default and changes the program, all of it at once
    "ppo": {"layer_norm": True, "clip_value": True},
    "dqn": {"layer_norm": True, "n_step": 3},
    "sac": {"layer_norm": True, "n_step": 3, "noise_steps": 5},
    "td3": {"layer_norm": True, "n_step": 3, "noise_steps": 5},
}
WITH_OPTIONS = [(script, ACTIONS[script][0], OPTIONS[script]) for script in SCRIPTS]
FIRST_CASES = [(script, ACTIONS[script][0]) for script in SCRIPTS]
with_options = pytest.mark.parametrize(("script", "env", "options"), [*WITH_OPTIONS, ("ppo", CONTINUOUS, {})])
both_actions = pytest.mark.parametrize(("script", "env"), CASES)
each_script = pytest.mark.parametrize(("script", "env"), FIRST_CASES)


def suffixed(script, name):
    """The variant of a probe whose actions the script takes, the first kind it names."""
    return name if ACTIONS[script][0] == DISCRETE else f"{name}-Continuous"


def config_of(script, env, iterations=ITERATIONS, **changes):
    """A short run. Normalisation is on, where a script has it."""
    config_class = importlib.import_module(script).Config
    names = {field.name for field in dataclasses.fields(config_class)}
    normalization = dict.fromkeys(names & {"normalize_obs", "normalize_reward"}, True)
    config = config_class(**{"env": env, **SHORT[script], **normalization, **changes})
    return replace(config, total_timesteps=config.env_steps(iterations))


def train_of(config):
    return importlib.import_module(type(config).__module__).make_train(config)


def algorithm_of(config):
    return importlib.import_module(type(config).__module__).make(config)


pytestmark = [pytest.mark.usefixtures("rank_promotion"), pytest.mark.slow]


@cache
def compiled(config):
    """init and step of many trials, jitted."""
    algorithm = algorithm_of(config)
    return jax.jit(jax.vmap(algorithm.init)), jax.jit(jax.vmap(algorithm.step, in_axes=(0, None)))


def run(config, keys):
    """The State and the metrics [num_trials, num_iterations] of a run of many trials, step by step."""
    init, step = compiled(config)
    state, records = init(keys), []
    for iteration in range(config.num_iterations):
        state, metrics = step(state, iteration)
        records.append(metrics)
    return state, jax.tree.map(lambda *x: np.stack(x, axis=1), *records)


@cache
def run_of(config):
    """The State and metrics of all SEEDS, computed once."""
    return run(config, SEEDS)


def data(tree):
    """Leaves as numpy arrays, random keys as their integers."""
    leaves = jax.tree.leaves(tree)
    is_key = [jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in leaves]
    return [np.asarray(jax.random.key_data(x) if key else x) for x, key in zip(leaves, is_key, strict=True)]


def trial(tree, i):
    return [x[i] for x in data(tree)]


def assert_equal(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def assert_close(a, b, rtol=1e-3, atol=1e-4):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)


# -- Public surface ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS)
def test_config_is_frozen_and_has_defaults(script):
    config = importlib.import_module(script).Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.gamma = 0.5
    assert config.num_iterations >= 100
    assert config.env_steps(config.num_iterations) <= config.total_timesteps
    hash(config)


@pytest.mark.parametrize("script", [name for name in ENVS if hasattr(importlib.import_module(name), "Params")])
def test_a_copy_of_a_script_has_parameters_of_its_own(script, tmp_path):
    """If they compared equal, optax's program for one could give the other parameters of the wrong class.

    That happens in a few processes of a hundred, as it depends on where the classes lie in memory.
    """
    params = importlib.import_module(script).Params
    copy = tmp_path / f"copy_of_{script}.py"
    shutil.copy(sys.modules[script].__file__, copy)
    own = import_script(str(copy)).Params
    del sys.modules[copy.stem]
    arrays = [0.0] * len(typing.get_type_hints(params))
    assert jax.tree.structure(params(*arrays)) == jax.tree.structure(params(*arrays))
    assert jax.tree.structure(own(*arrays)) != jax.tree.structure(params(*arrays))


# -- Seeds -------------------------------------------------------------------------------------------------------------

NUM_SEEDS = 16
SEEDS = jax.vmap(jax.random.key)(jnp.arange(NUM_SEEDS))


@both_actions
def test_every_seed_differs_from_the_first_parameter_on(script, env):
    state = compiled(config_of(script, env))[0](SEEDS)
    leaves = jax.tree_util.tree_leaves_with_path(state.params)
    kernels = [x for path, x in leaves if "kernel" in jax.tree_util.keystr(path)]  # biases begin at 0
    assert kernels
    for x in data((kernels, state.obs, state.key)):
        assert len(np.unique(x.reshape(NUM_SEEDS, -1), axis=0)) == NUM_SEEDS
    final, metrics = run_of(config_of(script, env))
    for x in data((final.params, final.obs, final.key)):
        assert len(np.unique(x.reshape(NUM_SEEDS, -1), axis=0)) == NUM_SEEDS
    discrete = {"episode_return", "episode_length", "num_episodes", "num_updates", "clip_fraction", "epsilon"}
    for name in set(metrics) - discrete:
        assert len(np.unique(metrics[name][:, 0])) > NUM_SEEDS // 2, name
        assert np.isfinite(metrics[name]).all(), name
    assert all(np.isfinite(x).all() for x in data(final.params))


@each_script
def test_exploration_and_environment_follow_the_key(script, env):
    """From the same State but for the key, the first actions and the first rewards are already different."""
    init, step = compiled(config_of(script, env))
    same = jax.tree.map(lambda x: jnp.broadcast_to(x[0], x.shape), init(SEEDS))
    row = int(probes.recorded(same.env_state).count[0, 0])
    record = probes.recorded(step(same.replace(key=SEEDS), 0)[0].env_state)  # [num_seeds, num_envs, ...]
    for field in ("action", "reward"):
        assert len(np.unique(getattr(record, field)[:, :, row], axis=0)) > NUM_SEEDS // 4, field


@each_script
def test_trials_do_not_see_each_other(script, env):
    config = config_of(script, env)
    before, after = run_of(config), run(config, SEEDS.at[5].set(SEEDS[3]))
    assert_equal(trial(after, 5), trial(after, 3))
    for i in set(range(NUM_SEEDS)) - {5}:
        assert_equal(trial(before, i), trial(after, i))


# -- Sweeps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_sweep_covers_every_float_field(script):
    hints = typing.get_type_hints(importlib.import_module(script).Config)
    assert {name for name, kind in hints.items() if kind is float} == set(SWEPT[script])


@each_script
def test_float_fields_can_be_swept(script, env):
    """Trials: the defaults, each field changed alone, all changed.

    The first equals the same seed among others, and the last a run alone, to rounding.
    """
    config = config_of(script, env)
    # normalize_reward excludes reward_scale, and only continuous actions have a standard deviation.
    without = ["reward_scale"] * getattr(config, "normalize_reward", False) + ["log_std_init"] * (env == DISCRETE)
    values = {name: value for name, value in SWEPT[script].items() if name not in without}
    defaults = {name: getattr(config, name) for name in values}
    trials = [defaults, *[defaults | {name: value} for name, value in values.items()], values]
    trials = {name: jnp.array([settings[name] for settings in trials]) for name in values}
    run_with = jax.jit(jax.vmap(lambda settings, key: train_of(replace(config, **settings))(key), in_axes=(0, None)))
    swept, metrics = run_with(trials, SEEDS[0])
    for i, name in enumerate(values):
        assert not np.array_equal(data(swept.params)[0][i + 1], data(swept.params)[0][0]), name
    unswept = [jax.tree.map(lambda x: x[0], run_of(config)), jax.jit(train_of(replace(config, **values)))(SEEDS[0])]
    for i, (state, expected) in zip((0, len(values) + 1), unswept, strict=True):
        known = {name: metrics[name] for name in expected}  # some are recorded if a setting is on, or may be
        assert_close(trial((swept, known), i), data((state, expected)))


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_float_field_has_a_range(script):
    hints = typing.get_type_hints(importlib.import_module(script).Config, include_extras=True)
    any_sign = {"target_entropy", "log_std_init"}
    assert {name for name, hint in hints.items() if hint is float} <= any_sign


PPO_CHANGES = {"clip_eps": 0.2, "clip_value": True, "gamma": 0.9, "gae_lambda": 0.7, "anneal_learning_rate": False}
PPO_CHANGES |= {"reward_scale": 0.3, "normalize_reward": False}


@pytest.mark.parametrize(
    ("script", "changes"),
    [
        ("ppo", PPO_CHANGES),
        ("sac", {"tau": 0.3, "gamma": 0.9, "alpha": 0.3}),
    ],
)
def test_a_setting_gives_the_same_numbers_in_a_sweep(script, changes):
    """Bit for bit over an iteration: 1 - 0.2 in double precision on the host is another float32 than on the device."""
    config = config_of(script, ACTIONS[script][0], iterations=1, **changes)
    floats = {name: jnp.float32([value, value]) for name, value in changes.items() if isinstance(value, float)}
    keys = SEEDS[:2]
    swept = jax.jit(jax.vmap(lambda settings, key: train_of(replace(config, **settings))(key)))(floats, keys)
    assert_equal(data(swept), data(jax.jit(jax.vmap(train_of(config)))(keys)))


@pytest.mark.parametrize("script", SCRIPTS)
def test_only_float_fields_can_be_swept(script):
    config = config_of(script, ACTIONS[script][0])
    with pytest.raises(ValueError, match=r"num_envs must be .*int.*only float fields may be swept"):
        jax.vmap(lambda n: algorithm_of(replace(config, num_envs=n)).init(SEEDS[0]))(jnp.array([1, 2]))


# -- Metrics -----------------------------------------------------------------------------------------------------------


@both_actions
def test_metrics_are_scalars_whatever_the_size_of_the_rollout(script, env):
    sizes = []
    for num_envs in (2, 12):
        config = config_of(script, env, num_envs=num_envs)
        _, metrics = jax.eval_shape(train_of(config), SEEDS[0])
        assert {"episode_return", "episode_length", "num_episodes"} <= metrics.keys()
        assert {x.shape for x in metrics.values()} == {(ITERATIONS,)}
        assert all(x.dtype == (jnp.int32 if name == "num_episodes" else jnp.float32) for name, x in metrics.items())
        sizes.append(len(metrics))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("script", SCRIPTS)
def test_returns_are_means_of_whole_episodes_or_nan(script):
    """Every episode is 20 steps of reward 100, rewards are normalised; the second of three iterations ends one."""
    config = config_of(script, suffixed(script, "Probe-Hundreds"))
    _, metrics = run(config, SEEDS[:2])
    episodes = np.diff([config.env_steps(i) // config.num_envs // 20 for i in range(ITERATIONS + 1)])
    assert 0 in episodes
    assert 1 in episodes
    np.testing.assert_array_equal(metrics["num_episodes"], [config.num_envs * episodes] * 2)
    np.testing.assert_array_equal(metrics["episode_return"], [np.where(episodes > 0, 2000, np.nan)] * 2)
    np.testing.assert_array_equal(metrics["episode_length"], [np.where(episodes > 0, 20, np.nan)] * 2)
    assert all(np.isfinite(x).all() for name, x in metrics.items() if name not in ("episode_return", "episode_length"))


# -- act and value -----------------------------------------------------------------------------------------------------


@cache
def policy_of(script, env):
    """The State of one trained trial, observations [64, *obs_shape], and what its policy and value say of them.

    The last is a jitted function (State, observations, keys [num_seeds]) -> act and value of all observations at once
    and of one after the other, and sampled actions, [num_seeds, 64, ...].
    """
    config = config_of(script, env)
    algorithm, one_by_one = algorithm_of(config), (None, 0)

    @jax.jit
    def answers(state, obs, keys):
        return {
            "act": algorithm.act(state, obs),
            "act, one by one": jax.vmap(algorithm.act, one_by_one)(state, obs),
            "sampled": jax.vmap(algorithm.act, in_axes=(None, None, 0))(state, obs, keys),
            "value": algorithm.value(state, obs),
            "value, one by one": jax.vmap(algorithm.value, one_by_one)(state, obs),
        }

    state = jax.tree.map(lambda x: x[0], run_of(config)[0])
    return state, 3.0 * jax.random.normal(jax.random.key(9), (64, 3)), answers


@both_actions
def test_act_and_value_take_one_observation_or_many(script, env):
    (state, obs, answers), algorithm, space = (
        policy_of(script, env),
        algorithm_of(config_of(script, env)),
        make_env(env).action_space,
    )
    for keys in ((), (SEEDS[1],)):
        assert jax.eval_shape(algorithm.act, state, obs[0], *keys).shape == space.shape
        many = jax.eval_shape(algorithm.act, state, obs, *keys)
        assert many.shape == (64, *space.shape)
        assert jnp.issubdtype(many.dtype, jnp.integer if hasattr(space, "n") else jnp.floating)
    assert jax.eval_shape(algorithm.value, state, obs[0]).shape == ()
    answer = answers(state, obs, SEEDS)
    assert answer["value"].shape == (64,)
    for name in ("act", "value"):
        np.testing.assert_allclose(answer[name], answer[f"{name}, one by one"], rtol=1e-4, atol=1e-5)
    assert bool(jax.vmap(space.contains)(answer["act"]).all())
    assert bool(jax.vmap(jax.vmap(space.contains))(answer["sampled"]).all())


@both_actions
def test_act_is_greedy_without_a_key_and_sampled_with_one(script, env):
    state, obs, answers = policy_of(script, env)
    answer, other = answers(state, obs, SEEDS), answers(state, obs, SEEDS[::-1])
    np.testing.assert_array_equal(answer["act"], other["act"])
    np.testing.assert_array_equal(answer["sampled"], other["sampled"][::-1])
    samples = np.asarray(answer["sampled"])
    assert len(np.unique(samples.reshape(NUM_SEEDS, -1), axis=0)) == NUM_SEEDS
    assert len(np.unique(samples[0], axis=0)) > 1
    assert not np.array_equal(samples[0], answer["act"])


@both_actions
def test_act_and_value_read_parameters_and_statistics_alone(script, env):
    """Everything else in the State may be gone, as in a policy that has been restored."""
    state, obs, answers = policy_of(script, env)
    needed = {"params", "obs_statistics"}
    zeros = lambda x: jax.random.key(0) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.zeros_like(x)
    rest = {field.name: getattr(state, field.name) for field in dataclasses.fields(state) if field.name not in needed}
    bare = state.replace(**jax.tree.map(zeros, rest))
    jax.tree.map(np.testing.assert_array_equal, answers(state, obs, SEEDS), answers(bare, obs, SEEDS))
    shifted = state.replace(obs_statistics=jax.tree.map(lambda x: x + 1, state.obs_statistics))
    assert not np.array_equal(answers(state, obs, SEEDS)["value"], answers(shifted, obs, SEEDS)["value"])
    sharp = jax.tree.map(lambda x: 30 * x, state.params)  # so that another observation is another action
    actions = [answers(x.replace(params=sharp), obs, SEEDS)["act"] for x in (state, shifted)]
    assert not np.array_equal(*actions)


@pytest.mark.parametrize("script", [script for script in SCRIPTS if CONTINUOUS in ACTIONS[script]])
def test_continuous_actions_fill_the_box_and_never_leave_it(script):
    """Parameters a million times too large push every action into a corner; tanh lets them be of either sign."""
    state, obs, answers = policy_of(script, CONTINUOUS)
    assert config_of(script, CONTINUOUS).activation == "tanh"
    space = probes.TWO_DIMENSIONS
    state = state.replace(params=jax.tree.map(lambda x: np.where(x == 0, 0.5, 1e6 * x), state.params))
    actions = np.asarray(answers(state, obs, SEEDS)["act"])
    np.testing.assert_allclose(actions.min(axis=0), space.low, atol=1e-6)
    np.testing.assert_allclose(actions.max(axis=0), space.high, atol=1e-6)


# -- Debug modes and shapes --------------------------------------------------------------------------------------------


def exempt(monkeypatch, owner, name):
    """Let a function of a dependency promote as it likes."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def promoting(*args, **kwargs):
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            return function(*args, **kwargs)

    monkeypatch.setattr(owner, name, promoting)


def exempt_optimizer(monkeypatch, name):
    """Let an optimizer of optax compute with standard dtype promotion."""
    optimizer = getattr(optax, name)

    def exempted(*args, **kwargs):
        transformation = optimizer(*args, **kwargs)

        def update(*args):
            with jax.numpy_dtype_promotion("standard"):
                return transformation.update(*args)

        return optax.GradientTransformation(transformation.init, update)

    monkeypatch.setattr(optax, name, exempted)


@pytest.fixture
def exempt_dependencies(monkeypatch):
    """Exempt other people's code, in which nothing would run under strict dtype or rank promotion."""
    # distrax/_src/distributions/distribution.py:78 and normal.py:88: a sample axis of 1 against none
    exempt(monkeypatch, distrax.Distribution, "sample_and_log_prob")
    exempt(monkeypatch, distrax.Distribution, "sample")
    # optax/tree_utils/_tree_math.py:449, 1 - decay**count: a float to the power of an int
    exempt_optimizer(monkeypatch, "adam")
    exempt_optimizer(monkeypatch, "radam")


@pytest.fixture
def few_objects():
    """The search for leaks looks at every object that the collector knows: it shall not know the old ones."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


# As context managers: they win over jax.config.update, and the fixture above is one. These modes look at the program
# while it is built, so building it is enough, and once for all four.
BUILT = {
    "jax_numpy_rank_promotion": lambda: jax.numpy_rank_promotion("raise"),
    "jax_numpy_dtype_promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "jax_check_tracer_leaks": jax.checking_leaks,
    "jax_debug_key_reuse": lambda: jax.debug_key_reuse(True),
}


@contextlib.contextmanager
def modes(**named):
    with contextlib.ExitStack() as stack:
        for name, mode in named.items():
            default = getattr(jax.config, name)
            stack.enter_context(mode())
            assert getattr(jax.config, name) != default
        yield


@with_options
@pytest.mark.usefixtures("exempt_dependencies", "few_objects")
def test_two_iterations_build_in_every_mode(script, env, options):
    """One trial: the checker of keys does not know vmap's transpose (jax/experimental/key_reuse/_core.py, line 320)."""
    config = config_of(script, env, iterations=2, **options)
    with modes(**BUILT):
        key = jax.random.key(0)  # one that nobody has used
        state, metrics = jax.eval_shape(jax.jit(train_of(config)), key)
        act = algorithm_of(config).act
        jax.eval_shape(jax.jit(act), state, state.obs)
        jax.eval_shape(jax.jit(act), state, state.obs, key)
    assert metrics["episode_return"].shape == (2,)


LEAKED = []
DEFECTS = {
    "jax_numpy_rank_promotion": (lambda key: jnp.ones((2, 1)) + jnp.ones(2), "rank.promotion"),
    "jax_numpy_dtype_promotion": (lambda key: jnp.ones(2) + jnp.ones(2, int), "dtype promotion path"),
    "jax_check_tracer_leaks": (LEAKED.append, "Leaked"),
    "jax_debug_key_reuse": (lambda key: jax.random.normal(key) + jax.random.uniform(key), "already consumed"),
}


@pytest.mark.parametrize("mode", DEFECTS)
@pytest.mark.usefixtures("few_objects")
def test_building_in_every_mode_notices_a_defect(mode):
    """The control of the test above, by one planted defect for each mode inside of a scan, as in a script."""
    defect, message = DEFECTS[mode]
    scan = jax.jit(lambda keys: jax.lax.scan(lambda carry, key: (carry, defect(key)), 0, keys))
    try:
        with modes(**BUILT), pytest.raises(Exception, match=message):
            jax.eval_shape(scan, jax.random.split(jax.random.key(0), 2))
    finally:
        LEAKED.clear()


@with_options
def test_parameters_and_metrics_are_float32_where_x64_is_on(script, env, options):
    assert_float32(train_of(config_of(script, env, **options)))


def assert_float32(train):
    with modes(jax_enable_x64=lambda: jax.enable_x64(True)):
        state, metrics = jax.eval_shape(train, jax.random.key(7))
        arrays = jax.tree.leaves((state.params, metrics))
        assert {x.dtype.name for x in arrays if jnp.issubdtype(x.dtype, jnp.floating)} == {"float32"}


SHAPES = {
    "bool observations, odd sizes": {
        "env": "Probe-Bool",
        "num_envs": 3,
        "train_interval": 3,
        "batch_size": 5,
        "buffer_size": 31,
        "num_steps": 5,
        "num_epochs": 1,
        "num_minibatches": 3,
    },
    "int observations": {"env": "FourRooms-misc"},
    "scalar observations, one minibatch": {"env": "FrozenLake-misc", "num_minibatches": 1},
    "images, one env": {"env": "Breakout-MinAtar", "num_envs": 1, "num_steps": 6},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("script", [script for script in SCRIPTS if DISCRETE in ACTIONS[script]])
@pytest.mark.usefixtures("exempt_dependencies")
def test_runs_with(script, shape):
    """Two iterations, for which rank promotion in our own code is an error too."""
    known = {field.name for field in dataclasses.fields(importlib.import_module(script).Config)}
    config = config_of(script, iterations=2, **{name: x for name, x in SHAPES[shape].items() if name in known})
    env = make_env(config.env)
    with jax.numpy_rank_promotion("raise"):
        algorithm = algorithm_of(config)
        state = jax.jit(algorithm.init)(jax.random.key(0))
        step = jax.jit(algorithm.step)
        for iteration in range(2):
            state, metrics = step(state, iteration)
        assert state.obs.shape == (config.num_envs, *env.obs_shape)
        assert state.obs.dtype == env.obs_dtype
        action = algorithm.act(state, state.obs)
    assert action.shape == (config.num_envs,)
    assert all(np.isfinite(x).all() for x in data(state.params))
    assert np.isfinite(metrics["grad_norm"]) if "grad_norm" in metrics else True
