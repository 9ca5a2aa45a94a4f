"""common/spaces.py: which scripts take an environment, and what a network sees of an image."""

import importlib
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces
from helpers import SCRIPTS

from common.environment import Environment
from common.spaces import choose_legal, draw_choices
from common.suites import Suite

DISCRETE, BOX = spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,))
VECTOR, IMAGE = (4,), (6, 6, 2)
SEEN_BY_CRITIC = {"actor": VECTOR, "critic": (9,)}
TAKEN = [
    (DISCRETE, VECTOR, ["ppo.py", "dqn.py"]),
    (DISCRETE, IMAGE, ["ppo.py", "dqn.py"]),
    (DISCRETE, SEEN_BY_CRITIC, ["ppo.py"]),
    (BOX, VECTOR, ["ppo.py", "sac.py", "td3.py"]),
    (BOX, SEEN_BY_CRITIC, ["ppo.py", "sac.py", "td3.py"]),
    (BOX, IMAGE, ["ppo.py"]),
    (BOX, {"actor": VECTOR, "critic": IMAGE}, ["ppo.py"]),
]


class Seen(Suite):
    """An episode without events, of these actions and observations."""

    max_episode_steps, reset_period = 9, 0

    def __init__(self, action_space, obs_shape, dtype=jnp.float32):
        is_shape = lambda x: isinstance(x, tuple)
        self.action_space = action_space
        self.obs = jax.tree.map(lambda shape: jnp.full(shape, 200, dtype), obs_shape, is_leaf=is_shape)

    def reset(self, key):
        return self.obs, ()

    def step(self, key, state, action):
        return self.obs, (), jnp.float32(0), jnp.bool_(False), {}


@pytest.mark.parametrize(("action_space", "obs_shape", "scripts"), TAKEN)
def test_a_script_takes_an_environment_or_says_what_it_takes(action_space, obs_shape, scripts):
    env = Environment(Seen(action_space, obs_shape))
    for script in [*SCRIPTS, "categorical_dqn", "ppo_rnn", "pqn", "reppo", "sac_discrete"]:
        module = importlib.import_module(script)
        with mock.patch.object(module, "make_env", return_value=env):
            try:
                algorithm = module.make(module.Config(env="Seen", hidden_sizes=(4,)))
            except ValueError as error:
                assert ", and this script " in str(error)  # noqa: PT017
                assert f"{script}.py" not in scripts
            else:
                jax.eval_shape(algorithm.init, jax.random.key(0))
                assert f"{script}.py" in scripts or script not in SCRIPTS


@pytest.mark.parametrize("script", ["ppo", "dqn", "ppo_rnn", "pqn"])
def test_bytes_of_an_image_are_seen_as_numbers_from_0_to_1(script):
    """The features of bytes are those of the same image as floats; numbers that are no image stay as they are."""
    module = importlib.import_module(script)
    for shape, divisor in ((IMAGE, 255), (VECTOR, 1), ((3, 3), 1), ((), 1)):
        torso = module.Torso(shape, hidden_sizes=(4,), activation="relu", layer_norm=False)
        image = np.random.default_rng(0).integers(0, 256, (5, *shape)).astype(np.uint8)
        params = torso.init(jax.random.key(0), image)
        floats = torso.apply(params, image.astype(np.float32) / divisor)
        np.testing.assert_allclose(torso.apply(params, image), floats, rtol=1e-5)


PARTS = {"actor": {"image": IMAGE, "wanted": (2,)}, "critic": VECTOR}


def test_an_observation_of_several_arrays_is_described():
    from common.suites.__main__ import describe

    with mock.patch("common.suites.__main__.make_env", return_value=Environment(Seen(DISCRETE, PARTS))):
        assert "3 actions       actor.image 6x6x2, actor.wanted 2, critic 4 float32" in describe("Seen")


@pytest.mark.parametrize("script", [*SCRIPTS, "categorical_dqn", "ppo_rnn", "pqn", "reppo", "sac_discrete"])
def test_networks_that_are_not_edited_refuse_several_arrays(script):
    module = importlib.import_module(script)
    is_discrete = script not in ("sac", "td3", "reppo")
    parts = {"actor": PARTS["actor"]}
    env = Environment(Seen(DISCRETE if is_discrete else BOX, parts, jnp.uint8))
    assert env.obs_dtype["actor"]["image"] == jnp.uint8
    with (
        mock.patch.object(module, "make_env", return_value=env),
        pytest.raises(ValueError, match=r"the actor sees several arrays, .* edit the networks of the script"),
    ):
        module.make(module.Config(env="Seen", hidden_sizes=(4,)))


def test_random_actions_are_uniform_over_the_legal_ones():
    """Two of three: numbers below 3 would give the first of them in two thirds of the cases."""
    obs = {"actor": jnp.zeros(4), "legal": jnp.array([True, False, True])}
    env = Environment(Seen(DISCRETE, {"actor": VECTOR}))
    env.obs_shape = jax.tree.map(jnp.shape, obs)
    actions = jax.vmap(choose_legal, (0, None))(draw_choices(jax.random.key(0), (10_000,), env), obs)
    np.testing.assert_allclose(np.bincount(actions) / 10_000, [0.5, 0, 0.5], atol=0.03)
