"""Small environments for the papers: goals, and levels that differ between episodes.

python benchmarks/paper_environments.py my_dqn.py --env BitFlip-v0:num_bits=10
"""

import runpy
import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))  # the folder of `common`
import common  # noqa: F401  # before gymnax

# ruff: isort: split
import gymnax
import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces
from gymnax.environments.classic_control.cartpole import CartPole


@struct.dataclass
class Bits:
    """State of BitFlip."""

    time: jax.Array
    bits: jax.Array
    goal: jax.Array


class BitFlip(environment.Environment):
    """Bit flipping (Andrychowicz et al. 2017, section 3.1): set the bits to those of the goal, [bits, goal]."""

    def __init__(self, num_bits: int = 10):
        super().__init__()
        self.num_bits = num_bits

    @property
    def default_params(self):
        return environment.EnvParams(max_steps_in_episode=self.num_bits)

    def reset_env(self, key, params):
        bits, goal = jax.random.bernoulli(key, shape=(2, self.num_bits)).astype(jnp.float32)
        return jnp.concatenate([bits, goal]), Bits(jnp.int32(0), bits, goal)

    def step_env(self, key, state, action, params):
        bits = state.bits.at[action].set(1.0 - state.bits[action])
        state = state.replace(time=state.time + 1, bits=bits)
        is_reached = (bits == state.goal).all()
        return jnp.concatenate([bits, state.goal]), state, jnp.where(is_reached, 0.0, -1.0), is_reached, {}

    def action_space(self, params=None):
        return spaces.Discrete(self.num_bits)

    def observation_space(self, params=None):
        return spaces.Box(0.0, 1.0, (2 * self.num_bits,))


@struct.dataclass
class Level:
    """State of VariedCartPole."""

    time: jax.Array
    inner: environment.EnvState
    length: jax.Array  # of half of the pole, m
    force_mag: jax.Array  # N


class VariedCartPole(CartPole):
    """CartPole with half poles of 0.1 to 3 m and forces of 2 to 20 N, drawn at each reset and not observed."""

    def reset_env(self, key, params):
        key, length_key, force_key = jax.random.split(key, 3)
        obs, inner = super().reset_env(key, params)
        length, force_mag = self.draw(length_key, force_key)
        return obs, Level(inner.time, inner, length, force_mag)

    def step_env(self, key, state, action, params):
        level = {"length": state.length, "polemass_length": params.masspole * state.length}
        params = params.replace(force_mag=state.force_mag, **level)
        obs, inner, reward, done, info = super().step_env(key, state.inner, action, params)
        return obs, state.replace(time=inner.time, inner=inner), reward, done, info

    def draw(self, length_key, force_key):
        return 0.1 * 30 ** jax.random.uniform(length_key), 2.0 * 10 ** jax.random.uniform(force_key)


class ExtremeCartPole(VariedCartPole):
    """The four corners of the levels of VariedCartPole."""

    def draw(self, length_key, force_key):
        lengths, forces = jnp.array([0.1, 3.0]), jnp.array([2.0, 20.0])
        return jax.random.choice(length_key, lengths), jax.random.choice(force_key, forces)


gymnax.register("BitFlip-v0", BitFlip)
gymnax.register("Poles-varied", VariedCartPole)
gymnax.register("Poles-extreme", ExtremeCartPole)

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
