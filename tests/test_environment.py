"""common/environment.py: what the scripts receive from gymnax, in particular at both kinds of ends of an episode."""

import functools

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import environment, spaces
from helpers import step_and_record, tiers
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from common.environment import Environment, clear_episodes, episode_metrics, make_env
from common.spaces import scale_action
from common.suites import Suite

# -- Observations, rewards and ends ------------------------------------------------------------------------------------

NUM_STEPS, NUM_ENVS = 60, 8


@functools.cache
def play(name):
    """Random actions in an environment. Returns it and numpy arrays [NUM_STEPS, NUM_ENVS, ...] of each step."""
    env = make_env(name)

    def step(carry, key):
        obs, env_state = carry
        keys = jax.random.split(key, NUM_ENVS)
        action = jax.vmap(env.action_space.sample)(keys)
        outcome = step_and_record(env, keys, env_state, action)
        next_obs, env_state, reward, terminated, truncated, info = outcome
        record = {"before": obs, "obs": next_obs, "reward": reward, "terminated": terminated, "truncated": truncated}
        return (next_obs, env_state), record | info

    def rollout(key):
        reset_key, key = jax.random.split(key)
        start = env.reset(jax.random.split(reset_key, NUM_ENVS))
        return jax.lax.scan(step, start, jax.random.split(key, NUM_STEPS))[1]

    return env, jax.tree.map(np.asarray, jax.jit(rollout)(jax.random.key(0)))


PLAYED = ["FrozenLake-misc", "Catch-bsuite", "FourRooms-misc", "DeepSea-bsuite", "UmbrellaChain-bsuite"]


@pytest.mark.parametrize("name", PLAYED)
def test_final_obs_is_the_next_obs_except_at_an_end(name):
    env, steps = play(name)
    done = steps["terminated"] | steps["truncated"]
    assert (~done).any()
    np.testing.assert_array_equal(steps["final_observation"][~done], steps["obs"][~done])
    assert steps["final_observation"].shape == steps["obs"].shape == (NUM_STEPS, NUM_ENVS, *env.obs_shape)
    assert steps["final_observation"].dtype == steps["obs"].dtype == env.obs_dtype
    np.testing.assert_array_equal(steps["before"][1:], steps["obs"][:-1])


def test_discrete_observations_become_one_hot():
    env, steps = play("FrozenLake-misc")
    assert env.obs_shape == (16,)
    assert env.obs_dtype == jnp.float32
    for x in (steps["obs"], steps["final_observation"]):
        np.testing.assert_array_equal(np.sort(x, axis=-1), np.broadcast_to(np.r_[np.zeros(15), 1], x.shape))
    position = steps["final_observation"].argmax(axis=-1)
    ended_at = set(position[steps["terminated"]])
    assert {5, 7, 11, 12} & ended_at  # random actions find the holes
    assert ended_at <= {5, 7, 11, 12, 15}
    assert not set(position[~steps["terminated"]]) & {5, 7, 11, 12, 15}
    assert set(steps["obs"].argmax(axis=-1)[steps["terminated"]]) == {0}  # the start


def test_matrices_keep_their_shape():
    env, steps = play("Catch-bsuite")
    assert env.obs_shape == (10, 5)
    done = steps["terminated"]
    assert done.sum() >= NUM_ENVS  # an episode takes nine steps
    last, first = steps["final_observation"][done], steps["obs"][done]
    assert (last[:, :9] == 0).all()  # the ball is in the paddle's row
    caught = last[:, 9].sum(axis=1) == 1
    np.testing.assert_array_equal(steps["reward"][done], np.where(caught, 1.0, -1.0))
    assert (first[:, 0].sum(axis=1) == 1).all()  # the next ball is in the highest row
    assert (first[:, 9] == [0, 0, 1, 0, 0]).all()  # and the paddle in the middle


def test_the_dtype_stays_as_the_environment_makes_it():
    env, steps = play("FourRooms-misc")
    assert env.obs_dtype == jnp.int32
    assert env.obs_shape == (4,)
    assert set(np.unique(steps["obs"])) <= set(range(13))


def test_rewards_are_float32_where_they_are_integers():
    raw, params = gymnax.make("UmbrellaChain-bsuite")
    _, state = raw.reset(jax.random.key(0), params)
    assert jnp.issubdtype(raw.step(jax.random.key(1), state, 0, params)[2].dtype, jnp.integer)
    _, steps = play("UmbrellaChain-bsuite")
    assert steps["reward"].dtype == np.float32
    assert set(np.unique(steps["reward"])) == {-1.0, 1.0}


def test_both_flags_can_be_true_at_once():
    """DeepSea's limit is the number of its rows: its episodes end in both ways in the same step."""
    env, steps = play("DeepSea-bsuite")
    expected = np.arange(1, NUM_STEPS + 1) % 8 == 0
    np.testing.assert_array_equal(steps["terminated"], np.tile(expected[:, None], NUM_ENVS))
    np.testing.assert_array_equal(steps["truncated"], steps["terminated"])
    assert env.max_episode_steps == 8
    assert (steps["final_observation"][expected] == 0).all()  # below the lowest row
    first = steps["obs"][expected].reshape(-1, 8 * 8)
    assert (first.argmax(axis=-1) == 0).all()  # the upper left corner
    assert (first.sum(axis=-1) == 1).all()


@pytest.mark.parametrize("name", PLAYED)
def test_returns_and_lengths_are_those_of_the_rewards(name):
    _, steps = play(name)
    done = steps["terminated"] | steps["truncated"]
    np.testing.assert_array_equal(steps["num_episodes"], done)
    for i in range(NUM_ENVS):
        start = 0
        for end in np.flatnonzero(done[:, i]) + 1:
            assert steps["episode_length"][end - 1, i] == end - start
            total = steps["reward"][start:end, i].astype(np.float64).sum()
            np.testing.assert_allclose(steps["episode_return"][end - 1, i], total, atol=1e-5)
            start = end


def test_environments_with_other_keys_are_other_environments():
    _, steps = play("FrozenLake-misc")
    assert len({steps["obs"][:, i].tobytes() for i in range(NUM_ENVS)}) == NUM_ENVS


# -- All environments --------------------------------------------------------------------------------------------------

WITHOUT_DOWNLOAD = [name for name in gymnax.registration._BUILTIN_ENV_IDS if name != "MNISTBandit-bsuite"]


@pytest.mark.slow
@pytest.mark.parametrize("name", WITHOUT_DOWNLOAD)
def test_every_gymnax_environment_has_the_shapes_and_types_it_promises(name):
    def start_and_step(keys):
        obs, env_state = env.reset(keys)
        return obs, env.step(keys, env_state, jax.vmap(env.action_space.sample)(keys))

    with jax.numpy_rank_promotion("allow"):  # Swimmer relies on it
        env = make_env(name)
        first, after = jax.eval_shape(start_and_step, jax.random.split(jax.random.key(0), 3))
    second, _, reward, terminated, truncated, info = after
    for obs in (first, second, info["final_observation"]):
        assert obs.shape == (3, *env.obs_shape)
        assert obs.dtype == env.obs_dtype
    assert reward.shape == (3,)
    assert reward.dtype == jnp.float32
    for flag in (terminated, truncated):
        assert flag.shape == (3,)
        assert flag.dtype == bool
    assert env.max_episode_steps > 0


# -- Names and spaces --------------------------------------------------------------------------------------------------


@struct.dataclass
class ToyState(environment.EnvState):
    pass


class Toy(environment.Environment):
    """An environment in which nothing happens."""

    def __init__(self, action_space, obs=None, limit=5):
        self.space, self.obs, self.limit = action_space, jnp.zeros(2) if obs is None else obs, limit

    @property
    def default_params(self):
        return environment.EnvParams(max_steps_in_episode=self.limit)

    def reset_env(self, key, params):
        return self.obs, ToyState(time=jnp.int32(0))

    def step_env(self, key, state, action, params):
        return self.obs, state.replace(time=state.time + 1), jnp.float32(0), jnp.bool_(False), {}

    def action_space(self, params=None):
        return self.space

    def observation_space(self, params=None):
        return spaces.Box(0, 1, jnp.shape(self.obs))


def make_toy(name, **arguments):
    name = f"Probe-Toy-{name}"
    if name not in gymnax.registered_envs:
        gymnax.register(name, lambda: Toy(**arguments))
    return make_env(name)


@pytest.mark.parametrize(
    ("name", "space"),
    [
        ("matrix", spaces.Box(-1.0, 1.0, (2, 2))),
        ("scalar", spaces.Box(-1.0, 1.0, ())),
        ("dict", spaces.Dict({"a": spaces.Discrete(2)})),
        ("tuple", spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3)))),
        ("unbounded", spaces.Box(-jnp.inf, jnp.inf, (2,))),
        ("half-bounded", spaces.Box(jnp.array([-1.0, -1.0]), jnp.array([1.0, jnp.inf]), (2,))),
        ("nan", spaces.Box(jnp.array([-1.0, jnp.nan]), jnp.array([1.0, 1.0]), (2,))),
    ],
)
def test_an_action_space_of_another_kind_is_refused(name, space):
    with pytest.raises(ValueError, match=rf"^Probe-Toy-{name}: the action space "):
        make_toy(name, action_space=space)


@pytest.mark.parametrize(
    ("name", "space"),
    [
        ("discrete", spaces.Discrete(3)),
        ("box", spaces.Box(-1.0, 1.0, (3,))),
        ("asymmetric", spaces.Box(jnp.array([-1.0, 0.0]), jnp.array([3.0, 0.5]), (2,))),
        pytest.param(
            "mixed-bounds",
            spaces.Box(0.0, jnp.array([1.0, 2.0]), (2,)),
        ),
    ],
)
def test_other_action_spaces_are_taken(name, space):
    assert make_toy(name, action_space=space).action_space is space


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (3, 3, 2), (2, 5, 3), (3, 3, 3, 3)])
def test_observations_keep_their_shape_and_dtype(shape):
    obs = jnp.arange(np.prod(shape, dtype=int)).reshape(shape).astype(jnp.uint8)
    env = make_toy(f"obs-{shape}", action_space=spaces.Discrete(2), obs=obs)
    keys = jax.random.split(jax.random.key(0), 2)
    start, env_state = env.reset(keys)
    after, *_, info = env.step(keys, env_state, jnp.zeros(2, jnp.int32))
    assert env.obs_shape == shape
    for x in (start, after, info["final_observation"]):
        assert x.dtype == env.obs_dtype == jnp.uint8
        np.testing.assert_array_equal(x, [obs] * 2)


def test_the_time_limit_is_reported():
    assert make_env("CartPole-v1").max_episode_steps == 500
    assert make_toy("limit", action_space=spaces.Discrete(2), limit=17.0).max_episode_steps == 17


# -- Actions -----------------------------------------------------------------------------------------------------------


scale = jax.jit(lambda action, low, high: scale_action(action, spaces.Box(low, high, (3,))))


@st.composite
def boxes(draw):
    low = draw(hnp.arrays(np.float32, 3, elements=st.integers(-1000, 1000).map(lambda x: x / 8)))
    return low, low + draw(hnp.arrays(np.float32, 3, elements=st.integers(1, 1000).map(lambda x: x / 8)))


@given(box=boxes(), action=hnp.arrays(np.float32, 3, elements=st.floats(-3, 3, width=32)))
def test_actions_are_clipped_and_scaled_in_each_dimension(box, action):
    low, high = box
    scaled = np.asarray(scale(action, low, high))
    share = (np.clip(action.astype(np.float64), -1, 1) + 1) / 2
    np.testing.assert_allclose(scaled, low + share * (high - low), rtol=1e-5, atol=1e-4)
    for end, expected in ((-1.0, low), (1.0, high), (-7.0, low), (np.inf, high), (0.0, (low + high) / 2)):
        np.testing.assert_allclose(scale(np.full(3, end, np.float32), low, high), expected, rtol=1e-6, atol=1e-4)


def test_a_box_of_two_numbers_has_them_in_all_dimensions():
    scaled = scale_action(jnp.array([[-1.0, 0.0, 1.0], [0.5, 2.0, -2.0]]), spaces.Box(-1.0, 3.0, (3,)))
    np.testing.assert_allclose(scaled, [[-1.0, 1.0, 3.0], [2.0, 3.0, -1.0]])


@pytest.mark.parametrize("leading", [(4,), (2, 4)])
def test_a_batch_of_actions_is_scaled_like_its_items(leading):
    space = spaces.Box(jnp.array([-1.0, 0.0]), jnp.array([3.0, 0.5]), (2,))
    action = np.random.default_rng(0).uniform(-2, 2, (*leading, 2)).astype(np.float32)
    items = np.stack([scale_action(jnp.asarray(x), space) for x in action.reshape(-1, 2)])
    np.testing.assert_allclose(scale_action(jnp.asarray(action), space), items.reshape(action.shape), rtol=1e-6)


# -- Episode metrics ---------------------------------------------------------------------------------------------------


class Told(Suite):
    """The action tells the reward and, if its second number is positive, the end."""

    max_episode_steps, reset_period, action_space = None, 0, spaces.Box(-1000.0, 1000.0, (2,))

    def reset(self, key):
        return jnp.zeros(1), ()

    def step(self, key, state, action):
        return jnp.zeros(1), (), action[0], action[1] > 0, {}


@jax.jit
def metrics_of_two_iterations(actions):
    """Actions [2, num_steps, num_envs, 2] -> metrics [2]."""
    env = Environment(Told())
    keys = jax.random.split(jax.random.key(0), actions.shape[2])

    def iterate(env_state, actions):
        step = lambda env_state, action: (env.step(keys, env_state, action)[1], None)
        env_state, _ = jax.lax.scan(step, clear_episodes(env_state), actions)
        return env_state, episode_metrics(env_state)

    return jax.lax.scan(iterate, env.reset(keys)[1], actions)[1]


SHAPE = (2, 5, 3)


@given(hnp.arrays(np.float32, SHAPE, elements=st.floats(-1000, 1000, width=32)), hnp.arrays(bool, SHAPE))
def test_episode_metrics_are_means_over_episodes_that_ended(rewards, ends):
    metrics = metrics_of_two_iterations(np.stack([rewards, ends], axis=-1).astype(np.float32))
    assert metrics.keys() == {"episode_return", "episode_length", "num_episodes"}
    assert jnp.issubdtype(metrics["num_episodes"].dtype, jnp.integer)
    totals, lengths = np.zeros(3), np.zeros(3, int)
    for iteration in range(2):
        ended = []
        for reward, is_end in zip(rewards[iteration], ends[iteration], strict=True):
            totals, lengths = totals + reward, lengths + 1
            ended += zip(totals[is_end], lengths[is_end], strict=True)
            totals, lengths = np.where(is_end, 0, totals), np.where(is_end, 0, lengths)
        assert metrics["num_episodes"][iteration] == len(ended)
        expected = np.mean(ended, axis=0) if ended else (np.nan, np.nan)
        means = metrics["episode_return"][iteration], metrics["episode_length"][iteration]
        np.testing.assert_allclose(means, expected, rtol=1e-4, atol=1e-2)


class Success(Toy):
    """Episodes of five steps; each step names what the metrics of the episode's last step should be."""

    def step_env(self, key, state, action, params):
        obs, state, reward, terminated, info = super().step_env(key, state, action, params)
        info = {"success": action == 1, "time": state.time, "path": jnp.zeros(3), "discount": 1.0}
        return obs, state, reward, terminated, info


def test_scalars_of_the_environments_info_become_metrics():
    """The value at an episode's last step, meaned over the episodes; arrays and gymnax' own entries are left out."""
    gymnax.register("Probe-Success", lambda: Success(spaces.Discrete(2)))
    env = make_env("Probe-Success")
    keys = jax.random.split(jax.random.key(0), 4)
    _, env_state = env.reset(keys)
    for step in range(1, 11):
        last = jnp.array([1, 0, 1, 1]) if step == 5 else jnp.zeros(4, jnp.int32)
        _, env_state, *_ = env.step(keys, clear_episodes(env_state), last)
        metrics = episode_metrics(env_state)
        assert metrics.keys() == {"episode_return", "episode_length", "num_episodes", "success", "time"}
        expected = {5: (0.75, 5.0), 10: (0.0, 5.0)}.get(step, (np.nan, np.nan))
        np.testing.assert_array_equal([metrics["success"], metrics["time"]], expected)
    with jax.numpy_dtype_promotion("strict"):  # integers and booleans are no float32
        jax.eval_shape(env.step, keys, env_state, last)


@struct.dataclass
class SpoiltState(environment.EnvState):
    is_spoilt: jax.Array


class Spoilt(Toy):
    """Episodes of two steps; the reward is 1, but NaN all through an episode whose reset key says so."""

    def reset_env(self, key, params):
        return self.obs, SpoiltState(time=jnp.int32(0), is_spoilt=jax.random.bernoulli(key))

    def step_env(self, key, state, action, params):
        state = state.replace(time=state.time + 1)
        return self.obs, state, jnp.where(state.is_spoilt, jnp.nan, 1.0), jnp.bool_(False), {}


def test_a_nan_reward_spoils_the_return_of_its_own_episode_alone():
    gymnax.register("Probe-Spoilt", lambda: Spoilt(spaces.Discrete(2), limit=2))
    env = make_env("Probe-Spoilt")

    def step(env_state, key):
        outcome = step_and_record(env, jax.random.split(key, 4), env_state, jnp.zeros(4, jnp.int32))
        _, env_state, reward, *_, info = outcome
        return env_state, (reward, info["num_episodes"] == 1, info["episode_return"])

    _, env_state = env.reset(jax.random.split(jax.random.key(0), 4))
    _, records = jax.lax.scan(step, env_state, jax.random.split(jax.random.key(1), 40))
    reward, ended, returns = (np.asarray(x).T for x in records)  # [num_envs, num_steps]
    np.testing.assert_array_equal(ended, [[False, True] * 20] * 4)
    expected = reward.reshape(4, 20, 2).sum(axis=-1)
    for i in range(4):
        first = np.flatnonzero(np.isnan(expected[i]))[0]
        assert 2.0 in expected[i, first:], "no whole episode after the first spoilt one: the test shows nothing"
    np.testing.assert_array_equal(returns[ended].reshape(4, 20), expected)


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Reacher-misc", "PointRobot-misc"])
def test_an_environment_can_be_made_where_everything_is_traced(name):
    """A sweep by hand, `jax.vmap(lambda gamma, key: make_train(replace(config, gamma=gamma))(key))`, does this."""

    def bounds(x):
        space = make_env(name).action_space
        return x * (space.n if hasattr(space, "n") else space.high)

    assert np.isfinite(jax.jit(bounds)(1.0)).all()


# -- gymnax' own step --------------------------------------------------------------------------------------------------

FIVE = ["CartPole-v1", "Pendulum-v1", "Catch-bsuite", "DeepSea-bsuite", "FrozenLake-misc"]


@pytest.mark.parametrize("name", tiers(FIVE, "CartPole-v1", "Catch-bsuite", "DeepSea-bsuite"))
def test_every_step_is_that_of_gymnax(name):
    """From the same State with the same key gymnax' `step` says the same, and starts the same next episode."""
    env, (raw, params) = make_env(name), gymnax.make(name)
    keys = jax.random.split(jax.random.key(0), (1100, 3))

    def step(env_state, keys):
        action = jax.vmap(env.action_space.sample)(keys)
        theirs = jax.vmap(raw.step, (0, 0, 0, None))(keys, env_state.state, action, params)
        obs, env_state, reward, terminated, truncated, info = env.step(keys, env_state, action)
        return env_state, ((obs, env_state.state, reward, terminated, truncated, info), theirs)

    obs, env_state = env.reset(keys[0])
    raw_obs, raw_state = jax.vmap(raw.reset, (0, None))(keys[0], params)
    np.testing.assert_array_equal(obs, env.suite._convert(raw_obs))
    jax.tree.map(np.testing.assert_array_equal, env_state.state, raw_state)
    _, (ours, theirs) = jax.jit(jax.lax.scan, static_argnums=0)(step, env_state, keys)
    (obs, state, *ours, info), (raw_obs, raw_state, *theirs, raw_info) = ours, theirs
    assert (ours[1] | ours[2]).sum() >= 3
    if name == "DeepSea-bsuite":  # sums two numbers over all episodes; here they begin anew with each
        state, raw_state = (x.replace(total_bad_episodes=0, denoised_return=0) for x in (state, raw_state))
    last, raw_last = info["final_observation"], raw_info["final_observation"]
    ours = obs, last, state, *ours
    theirs = env.suite._convert(raw_obs), env.suite._convert(raw_last), raw_state, *theirs
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), ours, theirs)


@pytest.mark.parametrize(("name", "limit"), [("Pendulum-v1", 200), ("Pendulum-v1:max_episode_steps=230", 230)])
def test_the_limit_may_be_more_or_less_than_gymnax_own(name, limit):
    env = make_env(name)

    def step(env_state, key):
        _, env_state, _, _, truncated, _ = env.step(key[None], env_state, jnp.zeros((1, 1)))
        return env_state, truncated[0]

    keys = jax.random.split(jax.random.key(0), 500)
    _, truncated = jax.lax.scan(step, env.reset(keys[:1])[1], keys)
    np.testing.assert_array_equal(np.flatnonzero(truncated) + 1, np.arange(limit, 501, limit))


def test_an_environment_with_a_step_of_its_own_is_refused():
    class Stepping(Toy):
        def step(self, *args):
            return super().step(*args)

    gymnax.register("Probe-Stepping", lambda: Stepping(spaces.Discrete(2)))
    with pytest.raises(
        ValueError, match=r"^Probe-Stepping has a `step` of its own; give it `step_env` and `reset_env`"
    ):
        make_env("Probe-Stepping")
