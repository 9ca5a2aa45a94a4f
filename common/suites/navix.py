"""Navix (Pignatelli et al. 2024, arXiv:2407.19396), MiniGrid, discrete actions: `--env navix/Navix-DoorKey-8x8-v0`.

An observation is the whole grid, [height, width, 3] symbols (kind, colour, state) as float32.
"""

from typing import Any

import jax
import jax.numpy as jnp

from common import suites

REQUIREMENT = "navix==0.7.4"
LEFT_OUT = {"Navix-KeyCorridor": "cannot be solved: Navix rewards a goal that is reached, and this one is a ball"}


def names() -> list[str]:
    """The environments of its registry that can be solved."""
    import navix

    return sorted(name for name in navix.registry() if not name.startswith(tuple(LEFT_OUT)))


class Suite(suites.Suite):
    """One environment."""

    reset_period = 16  # a new grid takes as long as 6 steps (benchmarks/README.md)

    def __init__(self, name: str, max_episode_steps: int | None = None):
        import navix
        from gymnax.environments import spaces

        # Navix can make rewards fall with time, by the share of the limit that has passed.
        self.env = navix.make(name, **({"max_steps": max_episode_steps} if max_episode_steps else {}))
        self.max_episode_steps = int(self.env.max_steps)
        self.action_space = spaces.Discrete(len(self.env.action_set))

    def reset(self, key: jax.Array):
        """`key -> obs, state`."""
        with jax.enable_x64(False):  # with 64 bits Navix mixes both widths, and its conds fail
            timestep = self.env.reset(key)
        return timestep.observation.astype(jnp.float32), timestep

    def step(self, key: jax.Array, timestep: Any, action: jax.Array):
        """`-> obs, state, reward, terminated, info`; Navix' own `step` would reset, one step late."""
        with jax.enable_x64(False):
            timestep = self.env._step(timestep, action.astype(jnp.int32))
        obs = timestep.observation.astype(jnp.float32)
        return obs, timestep, timestep.reward, timestep.is_termination(), {}

    def renderer(self):
        """The file's ending, and a function that writes an animation."""
        from navix.observations import rgb

        def render(states, returns, path):
            suites.write_gif((rgb(jax.device_put(timestep.state)) for timestep in states), path)

        return ".gif", render
