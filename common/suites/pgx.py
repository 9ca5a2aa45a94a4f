"""Pgx (Koyamada et al. 2023, arXiv:2303.17503), games for one player, discrete actions: `--env pgx/minatar-breakout`.

Its MinAtar has the original game's sticky actions; gymnax' has not. In 2048 the scripts choose legal moves alone;
an illegal one would end the game with a reward of -1.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common import suites

REQUIREMENT = "pgx==2.6.0"


def names() -> list[str]:
    """The games of pgx for one player."""
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

    def renderer(self):
        """The file's ending, and a function that writes an animation: pgx' own, or MinAtar's squares in its colours."""
        if self.env.id == "2048":
            from pgx import save_svg_animation

            return ".svg", lambda states, returns, path: save_svg_animation(list(states), path)
        return ".gif", lambda states, returns, path: suites.write_gif(map(draw_minatar, states), path)


def draw_minatar(state: Any) -> np.ndarray:
    """uint8 [10, 10, 3]: of what lies on a square its last channel, as pgx draws a still."""
    from pgx.minatar.utils import get_cmap

    obs = np.asarray(state.observation)  # [10, 10, num_channels] bool
    number = (obs * np.arange(1, obs.shape[-1] + 1)).max(axis=-1)
    return np.uint8(255 * np.array([(0.0, 0.0, 0.0), *get_cmap(obs.shape[-1])])[number])
