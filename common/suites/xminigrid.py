"""XLand-MiniGrid (Nikulin et al. 2024, arXiv:2312.12044), discrete actions: `--env xminigrid/MiniGrid-DoorKey-8x8`.

An observation is what the agent sees, [height, width, tiles + colours], of which each cell is two one-hot vectors.
"""

from typing import Any

import jax
import jax.numpy as jnp

from common import suites

REQUIREMENT = "xminigrid==0.9.3"
LEFT_OUT = {
    "XLand-MiniGrid": "has no task: its ruleset is empty, and nothing is ever rewarded",
    "MiniGrid-Playground": "has no task: nothing is ever rewarded",
}


def names() -> list[str]:
    """The environments of its registry that have a task."""
    import xminigrid

    return sorted(name for name in xminigrid.registered_environments() if not name.startswith(tuple(LEFT_OUT)))


class Suite(suites.Suite):
    """One environment."""

    reset_period = 16  # a new grid takes as long as one step (benchmarks/README.md)

    def __init__(self, name: str, max_episode_steps: int | None = None):
        import xminigrid
        from gymnax.environments import spaces
        from xminigrid.core.constants import NUM_COLORS, NUM_TILES

        self.env, self.params = xminigrid.make(name)
        if max_episode_steps:  # the reward falls with time, to 0.1 at the limit
            self.params = self.params.replace(max_steps=max_episode_steps)
        self.sizes = (NUM_TILES, NUM_COLORS)
        self.max_episode_steps = int(self.params.max_steps)
        self.action_space = spaces.Discrete(self.env.num_actions(self.params))

    def _obs(self, timestep: Any) -> jax.Array:
        layers = zip(self.sizes, jnp.moveaxis(timestep.observation, -1, 0), strict=True)
        return jnp.concatenate([jax.nn.one_hot(layer, size) for size, layer in layers], axis=-1)

    def reset(self, key: jax.Array):
        """`key -> obs, state`."""
        timestep = self.env.reset(self.params, key)
        return self._obs(timestep), timestep

    def step(self, key: jax.Array, timestep: Any, action: jax.Array):
        """`-> obs, state, reward, terminated, info`; its discount is 0 at an end and 1 where the limit cuts."""
        timestep = self.env.step(self.params, timestep, action)
        return self._obs(timestep), timestep, timestep.reward, timestep.discount == 0, {}

    def renderer(self):
        """The file's ending, and a function that writes an animation."""

        def render(states, returns, path):
            suites.write_gif((self.env.render(self.params, timestep) for timestep in states), path)

        return ".gif", render
