"""MuJoCo Playground (Zakka et al. 2025, arXiv:2502.08844), continuous actions: `--env playground/CheetahRun`.

Locomotion and manipulation environments download their models when they are first made. Of their observations the
policy gets `state`, and the critic `privileged_state` where there is one, as in the suite's own training.
"""

import subprocess
from typing import Any

import jax

from common import suites

REQUIREMENT = "playground==0.2.0"


def names() -> list[str]:
    """The environments of its registry."""
    from mujoco_playground import registry

    return sorted(registry.ALL_ENVS)


class Suite(suites.Suite):
    """One environment; `impl=warp` is the faster physics on an NVIDIA GPU.

    Physics that is no longer finite ends the episode as a termination, with finite observation and reward; the metric
    `physics_failed` is the share of episodes that ended so.
    """

    def __init__(self, name: str, impl: str = "jax", max_episode_steps: int | None = None):
        import mujoco
        from gymnax.environments import spaces
        from mujoco_playground import dm_control_suite, registry

        mujoco.set_mju_user_warning(lambda message: None)  # else it writes MUJOCO_LOG.TXT into this folder
        config = registry.get_default_config(name)
        self.repeat = int(config.action_repeat)
        overrides = {"impl": impl}
        if max_episode_steps:  # some observations have the share of time that is left
            overrides["episode_length"] = max_episode_steps * self.repeat
        try:
            self.env = registry.load(name, config_overrides=overrides)
        except subprocess.CalledProcessError as error:
            raise OSError("its models are downloaded from github.com, which failed") from error
        self.max_episode_steps = max_episode_steps or int(config.episode_length) // self.repeat
        # The resets of some of these simulate 200 steps; only the limit ends an episode of the control suite.
        self.reset_period = None if name in dm_control_suite.ALL_ENVS else 64
        self.action_space = spaces.Box(-1.0, 1.0, (self.env.action_size,))

    def reset(self, key: jax.Array):
        """`key -> obs, state`."""
        state = self.env.reset(key)
        return self._obs(state), state

    def step(self, key: jax.Array, state: Any, action: jax.Array):
        """`-> obs, state, reward, terminated, info`; the action is repeated as often as in the suite."""

        def once(state, _):
            state = self.env.step(state, action)
            return state, (state.reward, state.done)

        state, (rewards, done) = jax.lax.scan(once, state, length=self.repeat)
        guarded = suites.guard_physics(self._obs(state), rewards.sum(), done.any(), dict(state.metrics))
        obs, reward, terminated, info = guarded
        return obs, state, reward, terminated, info

    def _obs(self, state: Any) -> Any:
        if not isinstance(state.obs, dict):
            return state.obs
        if "privileged_state" not in state.obs:
            return state.obs["state"]
        return {"actor": state.obs["state"], "critic": state.obs["privileged_state"]}
