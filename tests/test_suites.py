"""common/suites: each suite says what its own interface says, but for the ends of episodes and new starts."""

import dataclasses
import importlib
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces
from helpers import ROOT, capture, rank_promotion, step_and_record

import common.suites
from common.environment import Environment, EnvState, make_env
from common.suites import Suite, canonical_name, guard_physics, suites
from common.suites import __main__ as listing
from runner.render import play_episode

pytestmark = pytest.mark.slow

NUM_STEPS = 400
LIMITS = {"craftax": 150, "navix": 8, "pgx": 15}  # low enough that both ends happen; 40 elsewhere
# An environment of each suite whose episodes also end by themselves, if there is one.
SMALL = {
    "brax": "brax/inverted_pendulum:backend=spring",
    "craftax": "craftax/Craftax-Classic-Symbolic-v1",
    "gymnax": "CartPole-v1",
    "navix": "navix/Navix-Dynamic-Obstacles-5x5-v0",
    "pgx": "pgx/minatar-breakout",
    "playground": "playground/CartpoleBalance",
    "xminigrid": "xminigrid/MiniGrid-EmptyRandom-5x5",
}
DRAWN = {"brax": ".html", "craftax": ".gif", "navix": ".gif", "pgx": ".gif", "xminigrid": ".gif"}
each_suite = pytest.mark.parametrize("suite", SMALL)


@pytest.fixture(autouse=True)
def promotion():
    """Suites promote as they like."""
    with rank_promotion("allow"):
        yield


def native(suite):
    """The suite's own `reset(key) -> obs, state` and `step(key, state, action) -> obs, state, reward, done`."""
    name = SMALL[suite].partition(":")[0].rpartition("/")[2]
    if suite == "brax":
        from brax import envs

        env = envs.get_environment(name, backend="spring")
        read = lambda state: (state.obs, state, state.reward, state.done)
        return lambda key: read(env.reset(key))[:2], lambda key, state, action: read(env.step(state, action))
    if suite == "craftax":
        from craftax.craftax_env import make_craftax_env_from_name

        env = make_craftax_env_from_name(name, auto_reset=False)
        return env.reset, lambda key, state, action: env.step(key, state, action)[:4]
    if suite == "gymnax":
        import gymnax

        env, params = gymnax.make(name)
        step = lambda *args: [env.step_env(*args, params)[i] for i in range(4)]
        return lambda key: env.reset_env(key, params), step
    if suite == "navix":
        import navix

        env = navix.make(name)
        read = lambda timestep: (timestep.observation, timestep, timestep.reward, timestep.is_done())
        return lambda key: read(env.reset(key))[:2], lambda key, state, action: read(env.step(state, action))
    if suite == "pgx":
        import pgx

        env = pgx.make(name)
        read = lambda state: (state.observation, state, state.rewards[0], state.terminated)
        return lambda key: read(env.init(key))[:2], lambda key, state, action: read(env.step(state, action, key))
    if suite == "playground":
        from mujoco_playground import registry

        env = registry.load(name, config_overrides={"impl": "jax"})
        read = lambda state: (state.obs, state, state.reward, state.done)
        return lambda key: read(env.reset(key))[:2], lambda key, state, action: read(env.step(state, action))
    import xminigrid

    env, params = xminigrid.make(name)
    params = params.replace(max_steps=40)  # on which rewards depend; only success is rewarded
    read = lambda timestep: (timestep.observation, timestep, timestep.reward, timestep.reward > 0)
    return (
        lambda key: read(env.reset(params, key))[:2],
        lambda key, state, action: read(env.step(params, state, action)),
    )


def same_observation(suite, obs):
    """The suite's observation as the scripts get it."""
    if suite != "xminigrid":
        return np.asarray(obs, np.float32)
    from xminigrid.core.constants import NUM_COLORS, NUM_TILES

    return np.concatenate([np.eye(NUM_TILES)[obs[..., 0]], np.eye(NUM_COLORS)[obs[..., 1]]], axis=-1)


@each_suite
def test_the_stream_is_the_suites_and_a_limit_is_not_an_end(suite, tmp_path, monkeypatch):
    """Every step of 400 is the one that the suite's own interface makes from the same state with the same key. The
    first ones can be drawn, too."""
    pytest.importorskip({"playground": "mujoco_playground"}.get(suite, suite))
    name, limit = SMALL[suite], LIMITS.get(suite, 40)
    env = make_env(f"{name}{',' if ':' in name else ':'}max_episode_steps={limit},reset_period=0")
    if suite == "playground":  # whose observations may depend on it
        assert env.suite.env._config.episode_length == limit
    reset, step = native(suite)
    reset_key, *keys = jax.random.split(jax.random.key(0), NUM_STEPS + 1)
    keys = jnp.stack(keys)
    actions = jax.vmap(env.action_space.sample)(keys)

    def script(carry, inputs):
        (obs, env_state), (key, action) = carry, inputs
        next_obs, next_state, *told = step_and_record(env, key[None], env_state, action[None])
        return (next_obs, next_state), (obs, env_state.state, told)

    @jax.jit
    def play():
        last, records = jax.lax.scan(script, env.reset(reset_key[None]), (keys, actions))
        return jax.tree.map(lambda x, end: jnp.concatenate([x[:, 0], end]), records[:2], (last[0], last[1].state)), [
            jax.tree.map(lambda x: x[:, 0], told) for told in records[2]
        ]

    (obs, states), (reward, terminated, truncated, info) = play()
    step_keys, reset_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
    before = jax.tree.map(lambda x: x[:-1], states)
    next_obs, _, next_reward, done = one_by_one(step)(step_keys, before, actions)
    ended = np.asarray(terminated | truncated)
    is_start = np.concatenate([[True], ended])
    start_obs, start_states = one_by_one(reset)(jnp.concatenate([reset_key[None], reset_keys])[is_start])
    next_obs, done, start_obs, obs = (np.asarray(x) for x in (next_obs, done, start_obs, obs))
    close = {"rtol": 1e-5, "atol": 1e-5}  # the same programs in another loop: all but rounding

    np.testing.assert_array_equal(terminated, done.astype(bool))
    np.testing.assert_allclose(reward, next_reward, **close)
    np.testing.assert_allclose(info["final_observation"], same_observation(suite, next_obs), **close)
    np.testing.assert_allclose(obs[1:][~ended], info["final_observation"][~ended], **close)
    np.testing.assert_allclose(obs[is_start], same_observation(suite, start_obs), **close)
    for x, start in zip(jax.tree.leaves(states), jax.tree.leaves(start_states), strict=True):
        x, start = (np.asarray(jax.random.key_data(y) if is_key(y) else y, np.float64) for y in (x, start))
        np.testing.assert_allclose(x[is_start], start, **close)

    length, total = 0, np.float32(0)
    for i in range(NUM_STEPS):
        length, total = length + 1, np.float32(total + reward[i])
        assert (bool(truncated[i]), info["num_episodes"][i]) == (length == limit, ended[i])
        if ended[i]:
            assert info["episode_length"][i] == length
            np.testing.assert_allclose(info["episode_return"][i], total, **close)
            length, total = 0, np.float32(0)
    ends = set(zip(np.asarray(terminated)[ended].tolist(), np.asarray(truncated)[ended].tolist(), strict=True))
    assert (False, True) in ends
    assert suite == "playground" or (True, False) in ends, "no episode ended by itself: the test shows too little"
    assert not np.allclose(obs[1:][ended], info["final_observation"][ended])
    if suite == "craftax":  # which would load textures of other sizes too, for a minute
        from craftax.craftax_classic import renderer

        textures = {16: renderer.load_all_textures_given_size(16)}
        monkeypatch.setattr(renderer, "load_all_textures", lambda: textures)
    if suite in DRAWN:
        few = [jax.tree.map(lambda x, i=i: x[i], states) for i in range(3)]
        assert_drawn(env.suite, DRAWN[suite], few, np.cumsum(reward[:3]), tmp_path)


@pytest.mark.parametrize("suite", ["brax", "playground"])
def test_physics_that_is_no_longer_finite_ends_the_episode(suite, monkeypatch):
    pytest.importorskip({"playground": "mujoco_playground"}.get(suite, suite))
    suite = make_env(SMALL[suite]).suite
    _, shapes = jax.eval_shape(suite.reset, jax.random.key(0))
    state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    broken = jax.tree.map(lambda x: x * jnp.nan if jnp.issubdtype(x.dtype, jnp.floating) else x, state)
    broken = broken.replace(done=state.done)
    monkeypatch.setattr(suite.env, "step", lambda state, action: state)
    for before, is_broken in ((state, False), (broken, True)):
        obs, _, reward, terminated, info = suite.step(jax.random.key(1), before, jnp.zeros(1))
        assert all(jnp.isfinite(x).all() for x in jax.tree.leaves((obs, reward, info)))
        assert (bool(terminated), bool(info["physics_failed"])) == (is_broken, is_broken)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("what", ["obs", "reward"])
def test_the_guard_changes_only_numbers_that_are_not_finite(what, bad):
    """It also changes a metric of the step that failed: its mean over episodes would say that the trial diverged."""
    obs, reward, metrics = jnp.array([1.0, 2.0]), jnp.float32(3), {"speed": jnp.float32(4), "count": jnp.int32(5)}
    told = guard_physics(obs, reward, jnp.bool_(False), metrics)
    jax.tree.map(np.testing.assert_array_equal, told, (obs, reward, False, metrics | {"physics_failed": False}))
    assert guard_physics(obs, reward, jnp.bool_(True), metrics)[2], "an end of the suite's own stays one"
    obs, reward = (obs.at[1].set(bad), reward) if what == "obs" else (obs, jnp.float32(bad))
    told = guard_physics(obs, reward, jnp.bool_(False), metrics | {"speed": jnp.float32(bad)})
    expected = np.zeros(2), 0, True, {"speed": 0, "count": 0, "physics_failed": True}
    jax.tree.map(np.testing.assert_array_equal, told, expected)
    assert guard_physics({"state": jnp.ones(2), "all": obs}, reward, jnp.bool_(False), metrics)[2], "a dict of them"


def one_by_one(function):
    """Like vmap, but with the rounding of a single call, on which Craftax' worlds depend."""
    return jax.jit(lambda *args: jax.lax.map(lambda x: function(*x), args))


def is_key(x):
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


# -- Starts kept ahead -------------------------------------------------------------------------------------------------


class Numbers(Suite):
    """An episode shows the number that its reset drew, and ends by itself after `length` steps."""

    max_episode_steps, reset_period = None, 0
    action_space = spaces.Discrete(2)

    def __init__(self, length):
        self.length = length

    def reset(self, key):
        number = jax.random.uniform(key)
        return number, (number, jnp.int32(0))

    def step(self, key, state, action):
        number, time = state
        return number, (number, time + 1), jnp.float32(1), time + 1 >= self.length, {}


def numbers_of(period, length, num_envs, num_steps, seed=0):
    """Observations [num_steps + 1, num_envs] of a run."""
    env = Environment(Numbers(length), reset_period=period)

    def step(env_state, key):
        obs, env_state, *_ = env.step(jax.random.split(key, num_envs), env_state, jnp.zeros(num_envs))
        return env_state, obs

    reset_key, step_key = jax.random.split(jax.random.key(seed))
    obs, env_state = env.reset(jax.random.split(reset_key, num_envs))
    _, later = jax.lax.scan(step, env_state, jax.random.split(step_key, num_steps))
    return jnp.concatenate([obs[None], later])


@pytest.mark.parametrize(("period", "num_envs"), [(0, 3), (1, 1), (4, 8), (7, 3), (7, 20), (16, 1), (16, 20)])
def test_episodes_of_a_period_begin_where_no_other_did(period, num_envs):
    length = max(period, 4)
    numbers = np.asarray(jax.jit(numbers_of, static_argnums=(0, 1, 2, 3))(period, length, num_envs, 30 * length))
    episodes = numbers[:-1].reshape(30, length, num_envs)
    assert (episodes == episodes[:, :1]).all(), "an episode shows the number that it began with"
    assert len(np.unique(episodes[:, 0])) == 30 * num_envs


def test_a_start_is_repeated_until_it_is_renewed_at_most():
    numbers = np.asarray(numbers_of(period=16, length=4, num_envs=4, num_steps=320))[:-1:4]  # of 80 episodes
    for env in numbers.T:
        counts = np.unique(env, return_counts=True)[1]
        assert counts.max() <= 16 / 4
        assert len(counts) >= 80 / 4


def test_starts_of_a_trial_do_not_depend_on_others():
    run = lambda seed: numbers_of(period=6, length=5, num_envs=3, num_steps=100, seed=seed)
    together = jax.jit(jax.vmap(run))(jnp.arange(3))
    np.testing.assert_array_equal(together[2], run(2))


@pytest.mark.parametrize(("options", "period"), [({}, 50), ({"max_episode_steps": 20}, 20), ({"reset_period": 3}, 3)])
def test_a_period_that_a_suite_leaves_open_is_the_time_limit(options, period):
    suite = Numbers(100)
    suite.max_episode_steps, suite.reset_period = 50, None
    assert Environment(suite, **options).reset_period == period


def test_no_start_is_computed_where_none_is_due():
    """Under vmap a cond would become a select, and XLA computes before a loop what nothing in the loop changes."""

    class Worlds(Numbers):
        def reset(self, key):
            world = jax.random.uniform(key, (256, 256))
            for _ in range(8):
                world = world @ world / 64
            return world[0, 0], (world[0, 0], jnp.int32(0))

    env = Environment(Worlds(5), reset_period=2)
    keys = jax.random.split(jax.random.key(0), (1, 8))
    _, env_state = jax.vmap(env.reset)(keys)
    step = jax.jit(jax.vmap(env.step))  # without vmap XLA moves nothing out of the loop

    def seconds(turn):
        started = time.perf_counter()
        jax.block_until_ready(step(keys, env_state.replace(turn=jnp.full(1, turn)), jnp.zeros((1, 8))))
        return time.perf_counter() - started

    times = np.array([[seconds(turn) for turn in (0, 1)] for _ in range(6)])[1:]  # the first one compiles
    none_due, due = times.min(axis=0)
    assert none_due < due / 4


def test_a_state_has_the_fields_of_older_checkpoints_in_order():
    """`runner.files.checkpoint` tells arrays by these names."""
    names = [field.name for field in dataclasses.fields(EnvState)]
    assert names == ["state", "length", "episode_return", "episodes", "starts", "turn", "told"]
    keys = jax.random.split(jax.random.key(0), 3)
    _, env_state = Environment(Numbers(5)).reset(keys)
    assert env_state.starts is None
    assert env_state.told == {}  # no array, as older checkpoints have none
    _, env_state = Environment(Numbers(5), reset_period=4).reset(keys)
    assert jax.tree.map(jnp.shape, env_state.starts) == ((3,), ((3,), (3,)))
    assert env_state.turn.shape == ()


def test_all_starts_are_renewed_together_once_in_a_period():
    env = Environment(Numbers(100), reset_period=4)
    keys = jax.random.split(jax.random.key(0), 3)
    _, env_state = env.reset(keys)
    for step in range(1, 13):
        before = np.asarray(env_state.starts[0])
        _, env_state, *_ = env.step(jax.random.split(jax.random.key(step), 3), env_state, jnp.zeros(3))
        is_new = env_state.starts[0] != before
        np.testing.assert_array_equal(is_new, [step % 4 == 0] * 3)
        assert env_state.turn == step % 4


class Dice(Suite):
    """Each step shows a number of the generator in its state, of the kind that is asked for."""

    max_episode_steps, reset_period, action_space = 4, 100, spaces.Discrete(2)

    def __init__(self, kind):
        self.kind = kind

    def reset(self, key):
        start_key, key = jax.random.split(key)
        raw = jax.random.key_data(key)
        generators = {
            "typed": {"any name": key},
            "two": [key, key],
            "raw": {"info": {"rng": raw}},
            "hidden": {"x": raw},
        }
        return jnp.float32(0), (jax.random.uniform(start_key), generators[self.kind])

    def step(self, key, state, action):
        start, generators = state
        keys = [x if x.dtype != jnp.uint32 else jax.random.wrap_key_data(x) for x in jax.tree.leaves(generators)]
        first, *others = (jax.random.uniform(x) for x in keys)
        return first - sum(others), state, start, jnp.bool_(False), {}


@pytest.mark.parametrize(("kind", "is_renewed"), [("typed", True), ("two", True), ("raw", True), ("hidden", False)])
def test_a_start_that_is_used_again_has_new_random_numbers(kind, is_renewed):
    """`hidden`, the control, is a generator that cannot be told from numbers."""
    env = Environment(Dice(kind))

    def step(env_state, key):
        _, env_state, start, *_, info = env.step(jax.random.split(key, 3), env_state, jnp.zeros(3))
        return env_state, (start, info["final_observation"])

    _, env_state = env.reset(jax.random.split(jax.random.key(0), 3))
    _, (start, numbers) = jax.lax.scan(step, env_state, jax.random.split(jax.random.key(1), 16))
    starts, numbers = np.asarray(start)[::4], np.asarray(numbers)[::4]  # [episode, environment]
    assert (starts[1:] == starts[1]).all(), "one start is kept for the second and all later episodes"
    assert (starts[0] != starts[1]).all()
    assert len(np.unique(numbers[1:])) == (9 if is_renewed else 3)
    if kind == "two":
        assert (numbers[1:] != 0).all(), "generators differ"


class Keys(Suite):
    """Each observation is the key that it was made with; the state has a generator, made as a kept start gets one."""

    max_episode_steps, reset_period, action_space = 4, 4, spaces.Discrete(2)

    def reset(self, key):
        return jax.random.key_data(key), jax.random.split(jax.random.split(key, 1)[0], ())

    def step(self, key, state, action):
        return jax.random.key_data(key), state, jnp.float32(0), jnp.bool_(False), {}


@pytest.mark.parametrize("period", [0, 4])
def test_no_reset_and_no_step_has_a_key_that_another_had(period):
    env, keys = Environment(Keys(), reset_period=period), jax.random.split(jax.random.key(0), (41, 3))

    def step(env_state, keys):
        obs, env_state, _, terminated, truncated, info = env.step(keys, env_state, jnp.zeros(3))
        kept = jax.random.key_data(env_state.starts[1] if period else env_state.state)
        generators = jax.random.key_data(env_state.state), kept
        return env_state, (obs, info["final_observation"], terminated | truncated, generators)

    first, env_state = env.reset(keys[0])
    _, (obs, stepped, ended, generators) = jax.jit(jax.lax.scan, static_argnums=0)(step, env_state, keys[1:])
    started = np.concatenate([first, obs[ended]])
    used = [*started, *stepped.reshape(-1, 2), *jax.random.key_data(keys[1:]).reshape(-1, 2)]
    assert len(started) == 3 * 11
    assert len({tuple(key.tolist()) for key in map(np.asarray, used)}) == len(used)
    if period:
        in_use, kept = ({tuple(key.tolist()) for key in np.asarray(x).reshape(-1, 2)} for x in generators)
        assert not in_use & kept


def test_a_long_step_is_traced_once_for_all_programs_and_loops():
    """Physics takes seconds to trace."""
    traced = []

    class Physics(Numbers):
        def step(self, *args):
            traced.append("step")
            return super().step(*args)

        def reset(self, key):
            traced.append("reset")
            return super().reset(key)

    env = Environment(Physics(5), reset_period=4)
    for num_envs in (2, 3):  # as in training and evaluation
        keys, action = jax.random.split(jax.random.key(0), num_envs), jnp.zeros(num_envs, jnp.int32)
        _, env_state = jax.jit(env.reset)(keys)
        jax.eval_shape(env.advance, keys, env_state, action)
        jax.eval_shape(jax.vmap(env.step), *jax.tree.map(lambda x: x[None], (keys, env_state, action)))
    assert sorted(traced) == ["reset", "step"]


# -- The contract of a suite -------------------------------------------------------------------------------------------


def test_a_suite_says_whether_it_is_small_and_can_be_drawn(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    suite = Numbers(5)
    assert Environment(suite).unroll == 1
    with pytest.raises(ValueError, match="cannot be drawn"):
        suite.renderer()
    suite.is_small = True
    assert Environment(suite).unroll > 1
    assert make_env("CartPole-v1").unroll > 1


def test_a_suite_without_a_step_cannot_be_made():
    class Resets(Suite):
        def reset(self, key):
            return jnp.zeros(1), ()

    with pytest.raises(TypeError, match="step"):
        Resets()


@pytest.mark.parametrize("name", suites())
def test_every_suite_fills_in_the_contract(name):
    assert Suite in importlib.import_module(f"common.suites.{name}").Suite.__mro__


# -- Names and options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere/ant", r"unknown environment 'nowhere/ant': there is no suite 'nowhere', only brax, craftax, gymnax"),
        ("/CartPole-v1", r"unknown environment '/CartPole-v1': there is no suite '', only brax"),
        ("../x/CartPole-v1", r"unknown environment '../x/CartPole-v1': there is no suite '../x', only brax"),
        (
            "xyz",
            r"unknown environment 'xyz'; .* gymnax lists them, none of Gymnasium; your own must be imported first$",
        ),
        ("gymnax/CartPole", r"unknown environment 'gymnax/CartPole'; did you mean gymnax/CartPole-v1\?"),
        ("CartPol", r"unknown environment 'CartPol'; did you mean CartPole-v1\?"),
        ("navix/Navix-KeyCorridorS3R1-v0", r"navix/Navix-KeyCorridorS3R1-v0 cannot be solved: "),
        ("xminigrid/XLand-MiniGrid-R1-9x9", r"xminigrid/XLand-MiniGrid-R1-9x9 has no task: "),
        ("xminigrid/MiniGrid-Playground:max_episode_steps=9", r"xminigrid/MiniGrid-Playground has no task: "),
        ("CartPole-v1:limit", r"options of CartPole-v1 are written CartPole-v1:name=value,name=value, not 'limit'"),
        ("CartPole-v1:size=8", r"CartPole-v1 has no option size; it has force_mag, gravity, .*reset_period"),
        ("CartPole-v1:gravity=1,gravity=2", r"CartPole-v1 has its option gravity twice$"),
        *(
            (f"CartPole-v1:gravity={text}", f"gravity of CartPole-v1 must be a finite number, not {text}$")
            for text in ("abc", "nan", "inf", "1e39", "True")
        ),
        *(
            (f"{env}:{key}={text}", rf"{key} of {env} must be an integer of {least} to 2147483647, not {text}$")
            for env, key, text, least in [
                ("CartPole-v1", "max_episode_steps", "0", 1),
                ("CartPole-v1", "max_episode_steps", "99999999999", 1),
                ("CartPole-v1", "max_steps_in_episode", "0", 1),
                ("CartPole-v1", "max_steps_in_episode", "2.5", 1),
                ("BernoulliBandit-misc", "max_steps_in_episode", "0.5", 1),
                ("CartPole-v1", "reset_period", "x", 0),
                ("CartPole-v1", "reset_period", "-1", 0),
                ("DeepSea-bsuite", "size", "0", 1),
                ("UmbrellaChain-bsuite", "n_distractor", "-1", 0),
            ]
        ),
        ("DeepSea-bsuite:size=1000000", r"size of DeepSea-bsuite must be at most 10000, not 1000000$"),
        ("FourRooms-misc:use_visual_obs=1", r"use_visual_obs of FourRooms-misc must be True or False, not 1$"),
        ("Acrobot-v1:available_torque=3", r"available_torque of Acrobot-v1 must be left out: only numbers, text, "),
        ("MetaMaze-misc:maze_size=4", r"MetaMaze-misc:maze_size=4 cannot be made with these options: AssertionError"),
        ("FrozenLake-misc:map_name=9x9", r"map_name must be"),
    ],
)
def test_a_name_that_is_wrong_is_refused_in_one_line(name, message):
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        make_env(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, "X") for name in ("X", "X:", "gymnax/X", "gymnax/X:")),
        *((f"X:a={number}", "X:a=100") for number in ("100", "1e2", "1_00", "100.0", "+100")),
        *((f"X:{options}", "X:a=0.5,b=s,c=True") for options in ("c=True,b=s,a=.5", "a=5e-1,b=s,c=True")),
        ("brax/X:b=1,a=2", "brax/X:a=2,b=1"),
        *((name, name) for name in ("X:a=1e-07", "X:a=1e+300", "X:a=nan", "X:a=4x4", "X:b,a=1e2", "X:a=1,", "X:,")),
    ],
)
def test_an_environment_has_one_name(name, expected):
    assert canonical_name(name) == canonical_name(expected) == expected


def test_options_reach_the_environment_and_the_limit():
    assert make_env("CartPole-v1:").max_episode_steps == 500
    assert make_env("DeepSea-bsuite:size=5").obs_shape == (5, 5)
    assert make_env("CartPole-v1:gravity=1.5").suite.params.gravity == 1.5
    assert make_env("CartPole-v1:max_episode_steps=7").max_episode_steps == 7
    assert make_env("CartPole-v1:max_episode_steps=1e3").max_episode_steps == 1000
    assert make_env("CartPole-v1:reset_period=7").reset_period == 7
    assert make_env("UmbrellaChain-bsuite:n_distractor=0").obs_shape == (3,)
    assert make_env("FourRooms-misc:use_visual_obs=True").obs_shape == (13, 13, 2)
    assert make_env("FrozenLake-misc:map_name=8x8").obs_shape == (64,)
    assert make_env("gymnax/CartPole-v1:gravity=1.5").suite.params.gravity == 1.5


@pytest.mark.parametrize(
    ("options", "whole"),
    [
        ("CartPole-v1:masspole=1", "masspole=1,total_mass=2,polemass_length=0.5"),
        ("CartPole-v1:masscart=3", "masscart=3,total_mass=3.1"),
        ("CartPole-v1:length=2", "length=2,polemass_length=0.2"),
        ("BernoulliBandit-misc:max_episode_steps=7", "max_episode_steps=7,t_max=7"),
    ],
)
def test_parameters_that_follow_from_others_are_derived(options, whole):
    params = make_env(options).suite.params
    assert params == make_env(f"{options.partition(':')[0]}:{whole}").suite.params
    assert params != make_env(options.partition(":")[0]).suite.params
    if "CartPole" in options:
        assert params.total_mass == pytest.approx(params.masscart + params.masspole)
        assert params.polemass_length == pytest.approx(params.masspole * params.length)


@pytest.mark.parametrize("name", ["Craftax-Classic-Symbolic-v1", "Craftax-Symbolic-v1"])
def test_achievements_are_those_of_the_state_whatever_ends(name, monkeypatch):
    pytest.importorskip("craftax")
    suite, key = make_env(f"craftax/{name}").suite, jax.random.key(0)
    _, shapes = jax.eval_shape(suite.reset, key)
    world = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes.replace(state_rng=None))
    world = world.replace(achievements=world.achievements.at[2].set(True))
    for done in (False, True):
        outcome = jnp.zeros(1), world, jnp.float32(0), jnp.bool_(done), {"discount": 1.0}
        monkeypatch.setattr(suite.env, "step", lambda *_, outcome=outcome: outcome)
        *_, terminated, info = suite.step(key, world, 0)
        assert terminated == done
        told = sorted(float(x) for name, x in info.items() if name.startswith("Achievements/"))
        assert told[-2:] == [0.0, 100.0]
        assert "Classic" not in name or info["score"] > 0


def test_a_reward_falls_by_the_limit_that_is_set():
    """XLand-MiniGrid pays 1 - 0.9 steps / limit, also where the limit is above the suite's own, here 100."""
    pytest.importorskip("xminigrid")
    limit = 1000
    env = make_env(f"xminigrid/MiniGrid-Empty-5x5:max_episode_steps={limit}")
    num_envs, num_steps = 8, 1500
    _, env_state = env.reset(jax.random.split(jax.random.key(0), num_envs))

    def step(env_state, key):
        action_key, key = jax.random.split(key)
        action = jax.random.randint(action_key, (num_envs,), 0, env.action_space.n)
        outcome = step_and_record(env, jax.random.split(key, num_envs), env_state, action)
        _, env_state, reward, terminated, _, info = outcome
        return env_state, (reward, terminated, info["episode_length"])

    keys = jax.random.split(jax.random.key(1), num_steps)
    _, (reward, terminated, length) = jax.jit(lambda: jax.lax.scan(step, env_state, keys))()
    assert length[terminated].max() > 100, "no success was late enough to tell"
    np.testing.assert_allclose(reward, np.where(terminated, 1 - 0.9 * length / limit, 0), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "limit_of"),
    [
        ("PointRobot-misc", lambda suite: suite.params.max_steps_in_episode),
        ("navix/Navix-Empty-5x5-v0", lambda suite: suite.env.max_steps),
    ],
)
def test_a_suite_that_depends_on_the_limit_is_told_it(name, limit_of):
    pytest.importorskip("navix" if name.startswith("navix") else "gymnax")
    env = make_env(f"{name}:max_episode_steps=1234")
    assert (env.max_episode_steps, limit_of(env.suite)) == (1234, 1234)


@pytest.mark.parametrize("suite", sorted(SMALL.keys() - {"gymnax"}))
def test_a_suite_that_is_not_installed_names_what_to_install(suite, monkeypatch):
    package = {"playground": "mujoco_playground"}.get(suite, suite)
    for module in [name for name in importlib.sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(importlib.sys.modules, module)
    monkeypatch.setitem(importlib.sys.modules, package, None)
    with pytest.raises(ValueError, match=rf"^{suite}/thing needs {suite}: pip install {suite}==[\d.]+ "):
        make_env(f"{suite}/thing")


BROKEN = {"broken": "import json\njson.no_such_name", "halved": "REQUIREMENT = 'half'\ndef names():\n    return 1 / 0"}
BROKEN |= {"silent": "REQUIREMENT = 'numpy'\ndef names():\n    return ['line']"}  # without a docstring: not broken


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """Two suites that cannot be imported, as with packages that do not go with their dependencies."""
    monkeypatch.setattr(common.suites, "__path__", [*common.suites.__path__, str(tmp_path)])
    for name, text in BROKEN.items():
        (tmp_path / f"{name}.py").write_text(text)
    yield tmp_path
    for name in BROKEN:
        importlib.sys.modules.pop(f"common.suites.{name}", None)


@pytest.mark.parametrize(
    ("suite", "message"),
    [
        ("broken", "cannot be imported: AttributeError: module 'json' has no attribute 'no_such_name' ({}, line 2)"),
        ("halved", "cannot be imported: ZeroDivisionError: division by zero ({}, line 3)"),
    ],
)
def test_a_suite_that_cannot_be_imported_is_one_line(suite, message, broken):
    message = message.format(broken / f"{suite}.py")
    with pytest.raises(ValueError, match="cannot be imported") as error:
        make_env(f"{suite}/thing")
    assert str(error.value) == f"{suite}/thing {message}"
    result = capture(listing.main, "suites", suite, "gymnax")
    assert (result.status, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{suite} {message}\ngymnax (")


def test_a_suite_without_a_docstring_is_listed(broken):
    result = capture(listing.main, "suites", "silent")
    assert (result.status, result.stdout) == (0, "silent, 1 environments:\n  silent/line\n")


def test_the_list_of_requirements_is_that_of_the_suites():
    modules = [importlib.import_module(f"common.suites.{suite}") for suite in suites() if suite != "gymnax"]
    lines = Path(__file__).parent.parent.joinpath("requirements-environments.txt").read_text().splitlines()
    assert sorted(module.REQUIREMENT for module in modules) == [line for line in lines if not line.startswith("#")]


def test_all_names_can_be_listed(monkeypatch):
    monkeypatch.setattr(listing, "suites", lambda: ["gymnax"])
    result = capture(listing.main, "environments")
    assert "gymnax, " in result.stdout
    assert "\n  CartPole-v1\n" in result.stdout
    result = capture(listing.main, "environments", "gymnax")
    assert "Options are fields" in result.stdout
    assert "\n  CartPole-v1\n" in result.stdout
    result = capture(listing.main, "environments", "Pendulum-v1", "CartPole-v1:max_episode_steps=7")
    first, second = (line.split() for line in result.stdout.splitlines())
    assert first == ["Pendulum-v1", "1", "continuous", "3", "float32", "200", "steps"]
    assert second[1:] == ["2", "actions", "4", "float32", "7", "steps"]
    result = capture(listing.main, "environments", "nowhere")
    message = "error: unknown environment 'nowhere'; python -m common.suites gymnax lists them, none of Gymnasium; "
    message += "your own must be imported first\n"
    assert (result.status, result.stderr) == (2, message)
    assert "suite (gymnax) or environment" in capture(listing.main, "environments", "--help").stdout


@pytest.mark.parametrize("suite", suites())
def test_a_list_makes_no_environment(suite, monkeypatch):
    module = importlib.import_module(f"common.suites.{suite}")
    monkeypatch.setattr(module, "names", lambda: ["first", "second"])
    monkeypatch.setattr(listing, "make_env", lambda name: pytest.fail(f"{name} was made"))
    assert "2 environments:\n" in capture(listing.main, "environments", suite).stdout


def test_a_list_ends_in_silence_where_its_reader_does():
    command = f"{sys.executable} -m common.suites gymnax | head -1"
    result = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert (result.stdout.count("\n"), result.stderr) == (1, "")


# -- Pictures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "ending"), [("Catch-bsuite", ".gif"), ("Pendulum-v1", ".gif"), ("pgx/2048", ".svg")])
def test_an_episode_can_be_drawn(name, ending, tmp_path):
    if "/" in name:
        pytest.importorskip("pgx")
    env = make_env(name)
    zeros = jnp.zeros((1, *env.action_space.shape), env.action_space.dtype)
    states, returns = play_episode(env, lambda obs, _: (zeros, ()), (), jax.random.key(0), 3)
    assert_drawn(env.suite, ending, states, returns, tmp_path)


def test_craftax_loads_its_textures_only_to_draw(monkeypatch):
    pytest.importorskip("craftax")
    suite = make_env(SMALL["craftax"]).suite
    monkeypatch.setitem(sys.modules, f"{suite.package}.renderer", None)  # an import fails
    assert suite.renderer()[0] == ".gif"


def assert_drawn(suite, ending, states, returns, folder):
    suffix, render = suite.renderer()
    path = folder / f"episode{suffix}"
    render(iter(states), returns, str(path))
    assert suffix == ending
    content = path.read_bytes()
    assert content.startswith({".gif": b"GIF8", ".html": b"<!DOCTYPE html>", ".svg": b"<?xml"}[ending])
    assert len(content) > 500


def test_a_square_of_minatar_has_the_colour_of_its_last_channel():
    utils, pgx = pytest.importorskip("pgx.minatar.utils"), importlib.import_module("common.suites.pgx")
    obs = np.zeros((10, 10, 4), bool)
    obs[2, 3, [0, 2]] = True
    picture = pgx.draw_minatar(SimpleNamespace(observation=obs))
    expected = np.zeros((10, 10, 3))
    expected[2, 3] = np.floor(255 * np.array(utils.get_cmap(4)[2]))
    np.testing.assert_array_equal(picture, expected)
