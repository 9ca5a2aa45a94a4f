"""Pgx (Koyamada et al. 2023, arXiv:2303.17503), games for one player, discrete actions: `--env pgx/minatar-breakout`.

Its MinAtar has the original game's sticky actions; gymnax' has not. In 2048 the scripts choose legal moves alone;
an illegal one would end the game with a reward of -1.
"""

from typing import Any

import jax
import jax.numpy as jnp

from common import suites

REQUIREMENT = "pgx==2.6.0"


def names() -> list[str]:
    """Its games for one player."""
    import pgx

    return [name for name in pgx.available_envs() if name.startswith("minatar-") or name == "2048"]


class Suite(suites.Suite):
    """One game."""

    max_episode_steps = None  # pgx has none
    reset_period = 0

    def __init__(self, name: str):
        import pgx
        from gymnax.environments import spaces

        self.env = pgx.make(name)
        self.action_space = spaces.Discrete(self.env.num_actions)

    def reset(self, key: jax.Array):
        """`key -> obs, state`."""
        state = self.env.init(key)
        return self.observe(state), state

    def step(self, key: jax.Array, state: Any, action: jax.Array):
        """`-> obs, state, reward, terminated, info`."""
        state = self.env.step(state, action, key)
        return self.observe(state), state, state.rewards[0], state.terminated, {}

    def observe(self, state: Any):
        """`state -> obs`, in 2048 with the legal actions; in MinAtar all are legal."""
        obs = state.observation.astype(jnp.float32)
        return {"actor": obs, "legal": state.legal_action_mask} if self.env.id == "2048" else obs
