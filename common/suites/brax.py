"""Brax (Freeman et al. 2021, arXiv:2106.13281), continuous actions: `--env brax/ant`.

With `brax/ant:backend=spring` or `positional` the physics is faster than with `generalized`, the default.

Brax' own wrappers are not used: they merge the time limit into `done`, drop the last observation and begin every
episode as the first one.
"""

import warnings
from pathlib import Path
from typing import Any

import jax

from common import suites

REQUIREMENT = "brax==0.14.2"


def names() -> list[str]:
    """The environments that brax registers; swimmer does not run with this version of JAX."""
    from brax import envs

    return sorted(envs._envs.keys() - {"fast", "swimmer"})


class Suite(suites.Suite):
    """One environment. Its metrics, such as `x_velocity`, are those of an episode's last step.

    Physics that is no longer finite ends the episode as a termination, with finite observation and reward; the metric
    `physics_failed` is the share of episodes that ended so.
    """

    max_episode_steps = 1000  # as brax.envs.create, and as in published results
    reset_period = 0

    def __init__(self, name: str, backend: str = "generalized"):
        import mujoco
        from brax import envs
        from gymnax.environments import spaces

        if backend not in ("generalized", "spring", "positional"):
            raise ValueError(f"the backend of brax is generalized, spring or positional, not {backend}")
        mujoco.set_mju_user_warning(lambda message: None)  # else it writes MUJOCO_LOG.TXT into this folder
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that Brax is no longer developed
            self.env = envs.get_environment(name, backend=backend)
        self.action_space = spaces.Box(-1.0, 1.0, (self.env.action_size,))

    def reset(self, key: jax.Array):
        """`key -> obs, state`."""
        state = self.env.reset(key)
        return state.obs, state

    def step(self, key: jax.Array, state: Any, action: jax.Array):
        """`-> obs, state, reward, terminated, info`; Brax' `done` is a fall, never the limit."""
        state = self.env.step(state, action)
        done = state.done.astype(bool)
        obs, reward, terminated, info = suites.guard_physics(state.obs, state.reward, done, dict(state.metrics))
        return obs, state, reward, terminated, info

    def renderer(self):
        """The file's ending, and a function that writes a page with an animation in three dimensions."""
        from brax.io import html

        def render(states, returns, path):
            system = self.env.sys.tree_replace({"opt.timestep": self.env.dt})
            Path(path).write_text(html.render(system, [state.pipeline_state for state in states]))

        return ".html", render
