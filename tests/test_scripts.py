"""What every script promises, whatever its algorithm: seeds, sweeps, metrics, act and value, debug modes, bad input."""

import dataclasses
import functools
import importlib
import typing
from dataclasses import replace
from functools import cache

import distrax
import gymnax.wrappers
import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest

from common.environment import make_env

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
    "dqn": {**REPLAY, "target_interval": 12, "epsilon_end": 0.5},
    "sac": REPLAY,
    "td3": REPLAY,
}
ITERATIONS = 3
# Every float field at another value, at which a short run is different from a default one.
SWEPT = {
    "ppo": {
        "learning_rate": 1e-2,
        "adam_eps": 1e-2,
        "max_grad_norm": 1e-3,
        "gamma": 0.5,
        "gae_lambda": 0.3,
        "clip_eps": 1e-4,
        "vf_coef": 0.1,
        "ent_coef": 0.5,
    },
    "dqn": {
        "tau": 0.5,
        "learning_rate": 1e-2,
        "adam_eps": 1e-2,
        "max_grad_norm": 1e-3,
        "gamma": 0.5,
        "epsilon_start": 0.0,
        "epsilon_end": 0.9,
        "exploration_fraction": 0.1,
    },
    "sac": {
        "tau": 0.5,
        "actor_learning_rate": 1e-2,
        "critic_learning_rate": 1e-2,
        "alpha_learning_rate": 1e-1,
        "alpha": 0.1,
        "target_entropy": 1.0,
        "gamma": 0.5,
    },
    "td3": {
        "tau": 0.5,
        "actor_learning_rate": 1e-2,
        "critic_learning_rate": 1e-2,
        "gamma": 0.5,
        "exploration_noise": 0.5,
        "target_noise": 1.0,
        "target_noise_clip": 0.01,
    },
}
# Environments of which a script takes the actions; where it has both kinds, the tests run in both.
DISCRETE, CONTINUOUS = "Probe-Recorder", "Probe-Recorder-Continuous"
ACTIONS = {"ppo": (DISCRETE, CONTINUOUS), "dqn": (DISCRETE,), "sac": (CONTINUOUS,), "td3": (CONTINUOUS,)}
CASES = [(script, env) for script in SCRIPTS for env in ACTIONS[script]]
FIRST_CASES = [(script, ACTIONS[script][0]) for script in SCRIPTS]
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


@cache
def lanes_of(config):
    """keys -> (State, metrics), compiled once for each number of lanes."""
    return jax.jit(jax.vmap(train_of(config)))


@pytest.fixture(scope="module", autouse=True)
def rank_promotion():
    with jax.numpy_rank_promotion("allow"):  # distrax needs it; test_two_iterations_build_in_mode is about this mode
        yield


@cache
def one_lane_of(config):
    """init and step of a single lane, compiled."""
    algorithm = algorithm_of(config)
    return jax.jit(algorithm.init), jax.jit(algorithm.step)


def data(tree):
    """Leaves as numpy arrays, random keys as their integers."""
    leaves = jax.tree.leaves(tree)
    is_key = [jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in leaves]
    return [np.asarray(jax.random.key_data(x) if key else x) for x, key in zip(leaves, is_key, strict=True)]


def lane(tree, i):
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


@pytest.mark.parametrize("script", SCRIPTS)
def test_presets_can_be_built(script):
    """Every preset names a known environment and known fields, and passes the checks."""
    module = importlib.import_module(script)
    for env, preset in module.PRESETS.items():
        assert preset.env == env
        module.make(preset)


# -- Seeds -------------------------------------------------------------------------------------------------------------

NUM_SEEDS = 16
SEEDS = jax.vmap(jax.random.key)(jnp.arange(NUM_SEEDS))


@both_actions
def test_every_seed_differs_from_the_first_parameter_on(script, env):
    state = jax.jit(jax.vmap(algorithm_of(config_of(script, env)).init))(SEEDS)
    leaves = jax.tree_util.tree_leaves_with_path(state.params)
    kernels = [x for path, x in leaves if "kernel" in jax.tree_util.keystr(path)]  # biases begin at 0
    assert kernels
    for x in [*kernels, *data(state.obs), *data(state.key)]:
        assert len(np.unique(x.reshape(NUM_SEEDS, -1), axis=0)) == NUM_SEEDS
    final, metrics = lanes_of(config_of(script, env))(SEEDS)
    for x in data((final.params, final.obs, final.key)):
        assert len(np.unique(x.reshape(NUM_SEEDS, -1), axis=0)) == NUM_SEEDS
    for name in set(metrics) - {"episode_return", "episode_length", "num_episodes", "clip_fraction", "epsilon"}:
        assert len(np.unique(metrics[name][:, 0])) > NUM_SEEDS // 2, name


@each_script
def test_exploration_and_environment_follow_the_key(script, env):
    """From the same State but for the key, the first actions and the first rewards are already different."""
    init, step = one_lane_of(config_of(script, env))
    state = init(SEEDS[0])
    row = int(probes.recorded(state.env_state).count[0])
    records = [probes.recorded(step(state.replace(key=key), 0)[0].env_state) for key in SEEDS]
    for field in ("action", "reward"):
        assert len(np.unique([getattr(record, field)[:, row] for record in records], axis=0)) > NUM_SEEDS // 4, field


@each_script
def test_lanes_with_the_same_key_are_equal_and_lanes_do_not_see_each_other(script, env):
    run = lanes_of(config_of(script, env))
    before = run(SEEDS)
    after = run(SEEDS.at[5].set(SEEDS[3]))
    assert_equal(lane(after, 5), lane(after, 3))
    for i in set(range(NUM_SEEDS)) - {5}:
        assert_equal(lane(before, i), lane(after, i))


@each_script
def test_a_seed_alone_step_by_step_is_the_same_as_among_others(script, env):
    """To rounding, over the first three iterations; make_train is nothing but init and a scan of step."""
    config = config_of(script, env)
    assert algorithm_of(config)._fields == ("init", "step", "act", "value")
    init, step = one_lane_of(config)
    state, records = init(SEEDS[7]), []
    for iteration in range(ITERATIONS):
        state, metrics = step(state, iteration)
        records.append(metrics)
    final, metrics = lanes_of(config)(SEEDS)
    assert_close(lane(final, 7), data(state))
    assert_close(lane(metrics, 7), data(jax.tree.map(lambda *x: jnp.stack(x), *records)))


# -- Sweeps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_sweep_covers_every_float_field(script):
    hints = typing.get_type_hints(importlib.import_module(script).Config)
    assert {name for name, kind in hints.items() if kind is float} == set(SWEPT[script])


@each_script
def test_float_fields_can_be_swept(script, env):
    """Lanes: the defaults, each field changed alone, all changed. The first and the last equal unswept runs."""
    config, values = config_of(script, env), SWEPT[script]
    defaults = {name: getattr(config, name) for name in values}
    lanes = [defaults, *[defaults | {name: value} for name, value in values.items()], values]
    lanes = {name: jnp.array([settings[name] for settings in lanes]) for name in values}
    run = jax.jit(jax.vmap(lambda settings, key: train_of(replace(config, **settings))(key), in_axes=(0, None)))
    swept, metrics = run(lanes, SEEDS[0])
    for i, name in enumerate(values):
        assert not np.array_equal(data(swept.params)[0][i + 1], data(swept.params)[0][0]), name
    for i, unswept in [(0, config), (len(values) + 1, replace(config, **values))]:
        state, unswept_metrics = lanes_of(unswept)(SEEDS)
        assert_close(lane(swept, i), lane(state, 0))
        assert_close(lane(metrics, i), lane(unswept_metrics, 0))


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_float_field_but_the_target_entropy_has_a_range(script):
    hints = typing.get_type_hints(importlib.import_module(script).Config, include_extras=True)
    assert {name for name, hint in hints.items() if hint is float} <= {"target_entropy"}


@pytest.mark.parametrize(
    ("script", "changes"),
    [
        ("ppo", {"clip_eps": 0.2, "clip_value": True, "gamma": 0.9, "gae_lambda": 0.7, "anneal_learning_rate": False}),
        ("dqn", {"tau": 0.3, "gamma": 0.9, "max_grad_norm": 0.7}),
        ("sac", {"tau": 0.3, "gamma": 0.9, "alpha": 0.3}),
        ("td3", {"tau": 0.3, "gamma": 0.9, "exploration_noise": 0.3}),
    ],
)
def test_a_setting_gives_the_same_numbers_inside_and_outside_of_a_sweep(script, changes):
    """Bit for bit over an iteration: 1 - 0.2 in double precision on the host is another float32 than on the device."""
    config = config_of(script, ACTIONS[script][0], iterations=1, **changes)
    floats = {name: jnp.float32([value, value]) for name, value in changes.items() if isinstance(value, float)}
    keys = SEEDS[:2]
    swept = jax.jit(jax.vmap(lambda settings, key: train_of(replace(config, **settings))(key)))(floats, keys)
    assert_equal(data(swept), data(lanes_of(config)(keys)))


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
def test_returns_are_raw_means_of_whole_episodes_and_nan_without_one(script):
    """Every episode is 20 steps of reward 100, rewards are normalised; the second of three iterations ends one."""
    config = config_of(script, suffixed(script, "Probe-Hundreds"))
    _, metrics = lanes_of(config)(SEEDS[:2])
    episodes = np.diff([config.env_steps(i) // config.num_envs // 20 for i in range(ITERATIONS + 1)])
    assert 0 in episodes
    assert 1 in episodes
    np.testing.assert_array_equal(metrics["num_episodes"], [config.num_envs * episodes] * 2)
    np.testing.assert_array_equal(metrics["episode_return"], [np.where(episodes > 0, 2000, np.nan)] * 2)
    np.testing.assert_array_equal(metrics["episode_length"], [np.where(episodes > 0, 20, np.nan)] * 2)
    assert all(np.isfinite(x).all() for name, x in metrics.items() if name not in ("episode_return", "episode_length"))


# -- act and value -----------------------------------------------------------------------------------------------------


@cache
def policy_of(script, env, **changes):
    """Algorithm, the State of one trained lane, and observations [64, *obs_shape]."""
    config = config_of(script, env, **changes)
    state, _ = lanes_of(config)(SEEDS)
    return (
        algorithm_of(config),
        jax.tree.map(lambda x: x[0], state),
        3.0 * jax.random.normal(jax.random.key(9), (64, 3)),
    )


@both_actions
def test_act_takes_one_observation_or_many(script, env):
    algorithm, state, obs = policy_of(script, env)
    space = make_env(env).action_space
    act, key = jax.jit(algorithm.act), jax.random.key(1)
    for keys in ((), (key,)):
        many = act(state, obs, *keys)
        assert many.shape == (64, *space.shape)
        assert act(state, obs[0], *keys).shape == space.shape
        assert jnp.issubdtype(many.dtype, jnp.integer if hasattr(space, "n") else jnp.floating)
        assert bool(jax.vmap(space.contains)(many).all())
    one_by_one = jax.vmap(algorithm.act, in_axes=(None, 0))(state, obs)
    np.testing.assert_allclose(act(state, obs), one_by_one, rtol=1e-4, atol=1e-5)
    values = algorithm.value(state, obs)
    assert values.shape == (64,)
    assert algorithm.value(state, obs[0]).shape == ()
    np.testing.assert_allclose(values[0], algorithm.value(state, obs[0]), rtol=1e-4, atol=1e-5)


@both_actions
def test_act_is_greedy_without_a_key_and_sampled_with_one(script, env):
    algorithm, state, obs = policy_of(script, env)
    act = jax.jit(algorithm.act)
    np.testing.assert_array_equal(act(state, obs), act(state, obs))
    np.testing.assert_array_equal(act(state, obs, SEEDS[0]), act(state, obs, SEEDS[0]))
    samples = np.asarray(jax.vmap(algorithm.act, in_axes=(None, None, 0))(state, obs, SEEDS))  # [num_seeds, 64, ...]
    assert len(np.unique(samples.reshape(NUM_SEEDS, -1), axis=0)) == NUM_SEEDS
    assert len(np.unique(samples[0], axis=0)) > 1
    assert not np.array_equal(samples[0], act(state, obs))


@both_actions
def test_act_and_value_read_parameters_and_statistics_alone(script, env):
    """Everything else in the State may be gone, as in a policy that has been restored."""
    algorithm, state, obs = policy_of(script, env)
    needed = {"params", "obs_statistics"}
    zeros = lambda x: jax.random.key(0) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else jnp.zeros_like(x)  # noqa: E731
    rest = {field.name: getattr(state, field.name) for field in dataclasses.fields(state) if field.name not in needed}
    bare = state.replace(**jax.tree.map(zeros, rest))
    for keys in ((), (SEEDS[0],)):
        np.testing.assert_array_equal(algorithm.act(state, obs, *keys), algorithm.act(bare, obs, *keys))
    np.testing.assert_array_equal(algorithm.value(state, obs), algorithm.value(bare, obs))
    shifted = state.replace(obs_statistics=jax.tree.map(lambda x: x + 1, state.obs_statistics))
    assert not np.array_equal(algorithm.value(state, obs), algorithm.value(shifted, obs))
    sharp = jax.tree.map(lambda x: 30 * x, state.params)  # so that another observation is another action
    actions = [algorithm.act(x.replace(params=sharp), obs) for x in (state, shifted)]
    assert not np.array_equal(*actions)


@pytest.mark.parametrize("script", [script for script in SCRIPTS if CONTINUOUS in ACTIONS[script]])
def test_continuous_actions_reach_the_whole_box_and_never_leave_it(script):
    """Parameters a million times too large push every action into a corner; tanh lets them be of either sign."""
    algorithm, state, obs = policy_of(script, CONTINUOUS, activation="tanh")
    space = probes.TWO_DIMENSIONS
    state = state.replace(params=jax.tree.map(lambda x: jnp.where(x == 0, 0.5, 1e6 * x), state.params))
    actions = np.asarray(algorithm.act(state, obs))
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


@pytest.fixture
def exempt_dependencies(monkeypatch):
    """What fails in other people's code: under strict dtype or rank promotion nothing would run otherwise."""
    # gymnax/wrappers/purerl.py:208, new_episode_return * (1 - done): an int minus a bool
    exempt(monkeypatch, gymnax.wrappers.LogWrapper, "step")
    # distrax/_src/distributions/distribution.py:78 and normal.py:88: a sample axis of 1 against none
    exempt(monkeypatch, distrax.Distribution, "sample_and_log_prob")
    exempt(monkeypatch, distrax.Distribution, "sample")
    # optax/tree_utils/_tree_math.py:449, 1 - decay**count: a float to the power of an int
    adam = optax.adam

    def exempt_adam(*args, **kwargs):
        transformation = adam(*args, **kwargs)

        def update(*args):
            with jax.numpy_dtype_promotion("standard"):
                return transformation.update(*args)

        return optax.GradientTransformation(transformation.init, update)

    monkeypatch.setattr(optax, "adam", exempt_adam)


# As context managers: they win over jax.config.update, and the fixture above is one. The first four modes look at the
# program while it is built, so building it is enough.
MODES = {
    "jax_numpy_rank_promotion": lambda: jax.numpy_rank_promotion("raise"),
    "jax_numpy_dtype_promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "jax_check_tracer_leaks": jax.checking_leaks,
    "jax_debug_key_reuse": lambda: jax.debug_key_reuse(True),
    "jax_debug_nans": lambda: jax.debug_nans(True),
    "jax_enable_x64": lambda: jax.enable_x64(True),
}
BUILT, RUN = list(MODES)[:4], list(MODES)[4:]


@both_actions
@pytest.mark.parametrize("mode", BUILT)
@pytest.mark.usefixtures("exempt_dependencies")
def test_two_iterations_build_in_mode(mode, script, env):
    """One lane: the checker of keys does not know vmap's transpose (jax/experimental/key_reuse/_core.py, line 320)."""
    config = config_of(script, env, iterations=2)
    default = getattr(jax.config, mode)
    with MODES[mode]():
        assert getattr(jax.config, mode) != default
        state, metrics = jax.jit(train_of(config)).lower(jax.random.key(0)).out_info
        act = algorithm_of(config).act
        jax.jit(act).lower(state, state.obs)
        jax.jit(act).lower(state, state.obs, jax.random.key(0))
    assert metrics["episode_return"].shape == (2,)


@pytest.mark.parametrize(("script", "env"), [(script, ACTIONS[script][-1]) for script in SCRIPTS])
@pytest.mark.parametrize("mode", RUN)
def test_two_iterations_run_in_mode(mode, script, env):
    """Episodes end in both iterations: without one, episode_return is NaN on purpose, and jax_debug_nans would stop."""
    config = config_of(script, env, iterations=2)
    default = getattr(jax.config, mode)
    with MODES[mode]():
        assert getattr(jax.config, mode) != default
        state, metrics = jax.jit(train_of(config))(jax.random.key(0))
        assert np.all(metrics["num_episodes"] > 0)
        assert all(np.isfinite(x).all() for x in data((state.params, metrics)))
        assert {x.dtype.name for x in jax.tree.leaves(state.params)} == {"float32"}


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


# -- Bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": "CartPole"}, "unknown environment 'CartPole'.*CartPole-v1"),
        ({"env": 3}, "env must be str, not 3"),
        ({"gamma": "0.9"}, "gamma must be float, not '0.9'"),
        ({"gamma": True}, "gamma must be float, not True"),
        ({"num_envs": 4.0}, r"num_envs must be .*int, not 4\.0"),
        ({"num_envs": True}, "num_envs must be .*int, not True"),
        ({"num_envs": -1}, "num_envs"),
        ({"num_envs": 0}, "num_envs"),
        ({"total_timesteps": 1}, "total_timesteps = 1"),
        ({"total_timesteps": 2**31}, r"total_timesteps = 2147483648.*2\*\*31"),
        ({"total_timesteps": 5e5}, "total_timesteps must be .*int"),
        ({"hidden_sizes": (8, "8")}, "hidden_sizes"),
        ({"activation": "nothing"}, "activation"),
        ({"gamma": 1.5}, "gamma must be between 0 and 1, not 1.5"),
        ({"gamma": float("nan")}, "gamma must be between 0 and 1, not nan"),
    ],
)
def test_bad_config_is_refused(script, changes, message):
    config = config_of(script, ACTIONS[script][0])
    with pytest.raises(ValueError, match=message):
        algorithm_of(replace(config, **changes))


@pytest.mark.parametrize("script", [script for script in SCRIPTS if CONTINUOUS in ACTIONS[script]])
@pytest.mark.parametrize("env", ["Probe-Unbounded", "Probe-Half-Bounded", "Probe-Matrix-Action"])
def test_action_spaces_that_cannot_be_used_are_refused(script, env):
    with pytest.raises(ValueError, match=f"{env}.*Box"):
        algorithm_of(config_of(script, env))
