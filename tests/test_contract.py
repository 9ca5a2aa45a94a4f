"""common/contract.py: environments that break the contract are refused in one line, those that bend it are taken."""

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import spaces
from hypothesis import given
from hypothesis import strategies as st

from common.environment import Environment, clear_episodes, episode_metrics, make_env
from common.suites import Suite


@struct.dataclass
class Place:
    position: jax.Array
    time: jax.Array


class Walk(Suite):
    """A walk of five steps; each test changes what one function returns."""

    max_episode_steps, reset_period, action_space = None, 0, spaces.Discrete(2)

    def __init__(self, **changes):
        vars(self).update(changes)

    def reset(self, key):
        return self.see_start(jnp.float32(0)), Place(position=jnp.float32(0), time=jnp.int32(0))

    def step(self, key, state, action):
        position, time = state.position + 1, state.time + 1
        state = state.replace(position=position, time=time)
        return self.see(position), self.move(state), self.pay(), self.end(time >= 5), self.tell(state)

    see_start = staticmethod(lambda position: position[None])
    see = staticmethod(lambda position: position[None].astype(jnp.float32))
    move = staticmethod(lambda state: state)
    pay = staticmethod(lambda: jnp.float32(1))
    end = staticmethod(lambda is_end: is_end)
    tell = staticmethod(lambda state: {})


def see_both(look):
    """The observation of `reset` and of `step`, the same in both."""
    return {"see_start": look, "see": look}


def tell_legal(legal, **changes):
    """Name the legal actions."""
    return see_both(lambda x: {"actor": x[None].astype(jnp.float32), "legal": legal()}) | changes


BREACHES = {
    "reward with an axis": ({"pay": lambda: jnp.ones(1)}, r"^reward must be a number \[\], not \[1\]$"),
    "flag as a number": ({"end": jnp.int32}, r"^terminated must be a bool \[\], not int32 \[\]$"),
    "flag with an axis": ({"end": lambda x: x[None]}, r"^terminated must be a bool \[\], not bool \[1\]$"),
    "limit of its own": ({"tell": lambda s: {"truncated": s.time}}, r"^truncated must be a bool \[\], not int32"),
    "a metric's name": ({"tell": lambda s: {"num_episodes": s.time}}, r"^info has a scalar num_episodes, the name of"),
    "other shape of obs": ({"see_start": lambda x: x}, r"^obs has the shape \(\) in reset and \(1,\) in step$"),
    "other shape of state": (
        {"move": lambda s: s.replace(position=s.position[None])},
        r"^state.position has the shape \(\) in reset and \(1,\) in step$",
    ),
    "state that grows": ({"move": lambda s: s.replace(time=(s.time, s.time))}, r"^obs and state are .* in step$"),
    "tuple as obs": (see_both(lambda x: (x, x)), r"^obs must be an array, not empty, or a dict of actor"),
    "other dict as obs": (see_both(lambda x: {"grid": x}), r"^obs must be .*, not \{'grid': "),
    "no actor": (see_both(lambda x: {"critic": x}), r"^obs must be .*, not \{'critic': "),
    "empty obs": (see_both(lambda x: jnp.zeros(0)), r"^obs must be .* not ShapeDtypeStruct\(shape=\(0,\)"),
    "limit of 0": ({"max_episode_steps": 0}, r"^max_episode_steps must be None or an int of at least 1, not 0$"),
    "limit that is no int": ({"max_episode_steps": 5.0}, r"^max_episode_steps must be .*, not 5\.0$"),
    "negative period": ({"reset_period": -1}, r"^reset_period must be None or an int of at least 0, not -1$"),
    "legal of another length": (tell_legal(lambda: jnp.ones(3, bool)), r"^obs\['legal'\] must be a bool \[2\], not bo"),
    "legal as numbers": (tell_legal(lambda: jnp.ones(2)), r"^obs\['legal'\] must be a bool \[2\], not float32"),
    "no legal action": (tell_legal(lambda: jnp.zeros(2, bool)), r"^obs\['legal'\] has no legal action"),
    "legal ones of continuous actions": (
        tell_legal(lambda: jnp.ones(2, bool), action_space=spaces.Box(-1.0, 1.0, (2,))),
        r"^obs must have no entry `legal`, as the actions are continuous$",
    ),
    "too few values": ({"step": lambda key, state, action: (jnp.ones(1), state)}, r"^step must return obs, state, rew"),
    "obs alone": ({"reset": lambda key: jnp.ones(1)}, r"^reset must return obs, state, not Shape"),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_is_refused_in_one_line(breach):
    changes, message = BREACHES[breach]
    with pytest.raises(ValueError, match=message) as caught:
        Environment(Walk(**changes))
    assert "\n" not in str(caught.value)


def test_a_refusal_names_the_environment(monkeypatch):
    monkeypatch.setattr("common.environment.make_suite", lambda name: (Walk(max_episode_steps=0), {}))
    with pytest.raises(ValueError, match=r"^Probe-Walk: max_episode_steps must be"):
        make_env("Probe-Walk")


def test_an_environments_own_error_is_not_one_of_the_contract(monkeypatch):
    changes = {"pay": lambda: jnp.concatenate([])}
    monkeypatch.setattr("common.environment.make_suite", lambda name: (Walk(**changes), {}))
    with pytest.raises(ValueError, match=r"^Need at least one array"):
        make_env("Probe-Walk-For-Nothing")


def play(env, num_steps=10, num_envs=2, key_of=jax.random.key):
    """Observations, rewards and the last env_state of a walk."""
    keys = lambda i: jax.random.split(key_of(i), num_envs)
    obs, env_state = env.reset(keys(0))
    records = [obs]
    for i in range(num_steps):
        obs, env_state, reward, *_ = env.step(keys(i + 1), env_state, jnp.zeros(num_envs, jnp.int32))
        records.append((obs, reward))
    return records, env_state


BENDS = {
    "python scalars": {"pay": lambda: 1.0, "tell": lambda s: {"success": True}},
    "integer reward": {"pay": lambda: jnp.int32(1)},
    "numpy reward": {"pay": lambda: np.float32(1)},
    "nothing told": {"tell": lambda s: {"success": None, "path": jnp.zeros(3)}},
    "obs of another dtype": {"see_start": lambda x: x[None].astype(jnp.int32)},
    "state of another dtype": {"move": lambda s: s.replace(position=s.position.astype(jnp.float16))},
    "slash in a name": {"tell": lambda s: {"a/b c": s.time}},
}


@pytest.mark.parametrize("bend", BENDS)
def test_other_types_are_taken(bend):
    env = Environment(Walk(**BENDS[bend]))
    (first, *records), env_state = jax.jit(lambda: play(env))()
    np.testing.assert_array_equal(first, np.zeros((2, 1)))
    assert first.dtype == env.obs_dtype == records[0][0].dtype
    np.testing.assert_array_equal([obs[0, 0] for obs, _ in records], [1, 2, 3, 4, 0] * 2)
    np.testing.assert_array_equal([reward for _, reward in records], np.ones((10, 2)))
    metrics = episode_metrics(env_state)
    assert (metrics["episode_return"], metrics["num_episodes"]) == (5.0, 4)


@pytest.mark.slow
def test_old_style_keys_are_the_same_keys():
    env = make_env("CartPole-v1")
    for num_envs in (1, 2, 3):
        old, new = (play(env, 3, num_envs, key_of) for key_of in (jax.random.PRNGKey, jax.random.key))
        jax.tree.map(np.testing.assert_array_equal, old, new)


@pytest.mark.slow
@pytest.mark.parametrize("script", ["ppo", "dqn", "categorical_dqn", "sac_discrete", "ppo_rnn", "pqn"])
def test_a_script_trains_with_an_old_style_key(script):
    module = __import__(script)
    algorithm = module.make(module.Config(env="CartPole-v1", hidden_sizes=(4,)))
    old, new = (jax.eval_shape(algorithm.init, key) for key in (jax.random.PRNGKey(0), jax.random.key(0)))
    shapes = [jax.tree.map(jnp.shape, state.replace(key=None)) for state in (old, new)]
    assert shapes[0] == shapes[1]
    jax.eval_shape(algorithm.step, old, 0)


# -- Scalars that are not finite ---------------------------------------------------------------------------------------

VALUES = st.lists(st.sampled_from([1.0, 2.0, 6.0, np.nan, np.inf, -np.inf]), min_size=1, max_size=6)


@pytest.mark.slow
@given(VALUES)
def test_a_scalar_is_the_mean_of_what_is_finite(values):
    """Such as `steps_to_goal`, which is NaN in an episode that never reached the goal."""
    env = Environment(Walk(end=lambda is_end: jnp.bool_(True), tell=lambda state: {"told": state.position}))
    _, env_state = env.reset(jax.random.split(jax.random.key(0), len(values)))
    env_state = env_state.replace(state=env_state.state.replace(position=jnp.array(values) - 1))
    _, env_state, *_ = env.step(jax.random.split(jax.random.key(1), len(values)), env_state, jnp.zeros(len(values)))
    finite = [x for x in values if np.isfinite(x)]
    metrics = episode_metrics(env_state)
    np.testing.assert_allclose(metrics["told"], np.mean(finite) if finite else np.nan, rtol=1e-6)
    assert metrics["num_episodes"] == len(values)
    assert np.isnan(episode_metrics(clear_episodes(env_state))["told"])


# -- Environments that are registered anew -----------------------------------------------------------------------------


def test_the_environment_that_was_registered_last_is_used(monkeypatch):
    classes = [gymnax.environments.classic_control.pendulum.Pendulum, gymnax.environments.misc.reacher.Reacher]
    sizes = []
    for maker in classes:
        monkeypatch.setitem(gymnax.registration._registry, "Pendulum-v1", maker)
        env = make_env("Pendulum-v1")
        assert make_env("Pendulum-v1") is env
        sizes.append(env.obs_shape)
    assert sizes == [(3,), (8,)]
    make_env.cache_clear()
    assert make_env("Pendulum-v1") is not env
