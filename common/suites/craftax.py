"""Craftax (Matthews et al. 2024, arXiv:2402.16801), discrete actions: `--env craftax/Craftax-Symbolic-v1`."""

import importlib
from typing import Any

import jax
import numpy as np

from common import suites

REQUIREMENT = "craftax==1.6.1"
PIXELS = 16  # of a block in an animation; Craftax has textures of 10, 16 and 64


def names() -> list[str]:
    """Craftax and Craftax-Classic, each with symbols and with pixels."""
    import craftax  # noqa: F401

    return [f"Craftax-{game}{kind}-v1" for game in ("", "Classic-") for kind in ("Symbolic", "Pixels")]


class Suite(suites.Suite):
    """One environment. Its metrics are the share of episodes, in percent, with each achievement."""

    reset_period = 64  # a new world takes as long as 20 to 30 steps (benchmarks/README.md)

    def __init__(self, name: str):
        from craftax.craftax.envs.common import log_achievements_to_info
        from craftax.craftax_classic.envs.common import compute_score
        from craftax.craftax_env import make_craftax_env_from_name
        from gymnax.environments import spaces

        self.env = make_craftax_env_from_name(name, auto_reset=False)
        params = self.env.default_params
        self.max_episode_steps = int(params.max_timesteps)  # 100,000; 10,000 in Classic
        self.params = params.replace(max_timesteps=2**30)  # so that `done` is death or victory alone
        self.action_space = spaces.Discrete(self.env.num_actions)
        self.package = "craftax.craftax_classic" if "Classic" in name else "craftax.craftax"
        # Craftax calls these with its own `done`; here the time limit ends episodes too.
        self.log = compute_score if "Classic" in name else log_achievements_to_info

    def reset(self, key: jax.Array):
        """`key -> obs, state`."""
        return self.env.reset(key, self.params)

    def step(self, key: jax.Array, state: Any, action: jax.Array):
        """`-> obs, state, reward, terminated, info`."""
        obs, state, reward, done, _ = self.env.step(key, state, action, self.params)
        return obs, state, reward, done, self.log(state, True)

    def renderer(self):
        """The file's ending, and a function that writes an animation."""

        def render(states, returns, path):
            make_renderer = importlib.import_module(f"{self.package}.renderer").make_craftax_pixel_renderer
            draw = jax.jit(make_renderer(PIXELS))  # loads textures, which takes a minute the first time
            suites.write_gif((np.uint8(draw(state)) for state in states), path)

        return ".gif", render
