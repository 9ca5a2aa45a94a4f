"""Gymnasium's MuJoCo tasks (Towers et al. 2024, arXiv:2407.17032), continuous actions: `--env mujoco/HalfCheetah-v5`.

The compiled program calls Gymnasium's own environments on the host. All that MuJoCo remembers from step to step is in
the state, as float64, so a step is a pure function: any process may compute it, for any seed, and again.
"""

import functools
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.buffer_callback import buffer_callback

from common import suites

REQUIREMENT = "gymnasium[mujoco]==1.3.0"
LEFT_OUT = {"Pusher-v4": "does not run with MuJoCo 3 and later; take mujoco/Pusher-v5"}
# What MuJoCo remembers from step to step. The last two lag a substep behind qpos: Ant and Humanoid compute velocities
# from their change, and Reacher-v4 a distance before its step.
KEPT = ("qpos", "qvel", "act", "qacc_warmstart", "xpos", "xipos")
INTEGERS = ("frame_skip", "main_body")  # the other numbers are floats, also where Gymnasium's default is 1


def names() -> list[str]:
    """Versions 4 and 5 of Gymnasium's tasks; older ones need mujoco-py."""
    import gymnasium
    import mujoco  # noqa: F401  # Gymnasium registers the tasks without it

    specs = [spec for spec in gymnasium.registry.values() if str(spec.entry_point).startswith("gymnasium.envs.mujoco")]
    return sorted(spec.id for spec in specs if spec.version >= 4 and spec.id not in LEFT_OUT)


def find_class(name: str) -> Any:
    """Gymnasium's class of a task. `gymnasium.make` would warn of version 4."""
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    return load_env_creator(gymnasium.spec(name).entry_point)


class Suite(suites.Suite):
    """One task. The scalars of Gymnasium's info, such as `x_velocity`, are those of an episode's last step.

    Options are numbers and switches among the arguments of Gymnasium's class: `mujoco/Ant-v5:healthy_reward=0.5`.

    Physics that is no longer finite ends the episode as a termination, with finite observation and reward; the metric
    `physics_failed` is the share of episodes that ended so. Gymnasium goes on, from where MuJoCo has reset itself.
    """

    reset_period = 16  # a reset costs about as much as a step

    @classmethod
    def options(cls, name: str) -> dict[str, Any]:
        """Arguments of Gymnasium's class."""
        numbers = {key: x for key, x in suites.arguments(find_class(name)).items() if isinstance(x, int | float)}
        return {key: x if isinstance(x, bool) or key in INTEGERS else float(x) for key, x in numbers.items()}

    def __init__(self, name: str, **options: Any):
        import gymnasium
        import mujoco
        from gymnax.environments import spaces

        # Else MuJoCo writes MUJOCO_LOG.TXT into this folder, as version 4 does of a word in HalfCheetah's model.
        mujoco.set_mju_user_warning(lambda message: None)
        self.max_episode_steps = gymnasium.spec(name).max_episode_steps
        make = functools.partial(find_class(name), **options)
        env = make()
        low, high = env.action_space.low, env.action_space.high
        self.action_space = spaces.Box(low, high, low.shape)
        obs, _ = env.reset(seed=0)
        info = env.step(np.zeros_like(low))[-1]
        self._scalars = [key for key, x in info.items() if np.ndim(x) == 0]
        self._make = lambda **drawing: Host(make(**drawing), self._scalars)
        self._idle = [Host(env, self._scalars)]  # not in a threading.local: the threads of XLA crash as they drop it
        self._size = self._idle[0].size
        self._width = self._size + 2 + len(self._scalars) + obs.size

    def reset(self, key: jax.Array):
        """`key -> obs, state`; a state is the bits of the numbers that are kept."""
        state, _, _, _, obs = self._call(Host.reset, jax.random.bits(key, (2,)))
        return obs, state

    def step(self, key: jax.Array, state: jax.Array, action: jax.Array):
        """`-> obs, state, reward, terminated, info`; the action is clipped, which Gymnasium leaves to a wrapper."""
        action = jnp.clip(action, self.action_space.low, self.action_space.high)
        bits = jax.lax.bitcast_convert_type(action.astype(jnp.float32), jnp.uint32)
        state, reward, terminated, scalars, obs = self._call(Host.step, jnp.concatenate([state, bits]))
        info = dict(zip(self._scalars, scalars, strict=True))
        obs, reward, terminated, info = suites.guard_physics(obs, reward, terminated > 0, info)
        return obs, state, reward, terminated, info

    def renderer(self):
        """The file's ending, and a function that writes an animation. Raises ValueError where OpenGL does not run."""
        import mujoco

        backend = os.environ.setdefault("MUJOCO_GL", "egl" if sys.platform == "linux" else "glfw")  # egl: no screen
        host = self._make(render_mode="rgb_array", width=320, height=320)
        try:
            importlib.import_module(f"mujoco.{backend}").GLContext(1, 1).free()  # Gymnasium would print a second error
            host.env.render()
        except Exception as error:  # mujoco.FatalError, and a wide variety of OpenGL's packages
            message = f"MuJoCo cannot draw here with MUJOCO_GL={backend}; try egl, osmesa or glfw ({error})"
            raise ValueError(message.splitlines()[0]) from error

        def draw(state):
            host.restore(np.asarray(state))
            mujoco.mj_forward(host.env.model, host.env.data)
            return host.env.render()

        milliseconds = max(20, round(1000 * host.env.dt))  # as fast as programs show
        return ".gif", lambda states, returns, path: suites.write_gif(map(draw, states), path, milliseconds)

    def _call(self, function: Callable, row: jax.Array) -> tuple[jax.Array, ...]:
        """Call `function(host, row, out)` for each environment; state, reward, terminated, scalars, obs from `out`.

        One row of uint32 [n] goes in and one comes out, since each array of a callback costs as much as the first.
        """
        shape = jax.ShapeDtypeStruct((self._width,), jnp.uint32)

        def write(_, out, rows):
            try:
                host = self._idle.pop()
            except IndexError:  # several devices call at once
                host = self._make()
            rows, out = np.asarray(rows), np.asarray(out)
            for row, place in zip(rows.reshape(-1, rows.shape[-1]), out.reshape(-1, self._width), strict=True):
                function(host, row, place)
            self._idle.append(host)

        def call(rows):
            out = np.empty((*rows.shape[:-1], self._width), np.uint32)
            write(None, out, rows)
            return out

        # On a CPU the callback works in the program's own arrays: 6 microseconds per call, where copies take 180.
        out = jax.lax.platform_dependent(
            row,
            cpu=buffer_callback(write, shape, vmap_method="broadcast_all"),
            default=lambda row: jax.pure_callback(call, shape, row, vmap_method="broadcast_all"),
        )
        state, told = jnp.split(out, [self._size])
        told = jax.lax.bitcast_convert_type(told, jnp.float32)
        return state, told[0], told[1], told[2 : 2 + len(self._scalars)], told[2 + len(self._scalars) :]


class Host:
    """One of Gymnasium's environments. It may step from any state, so it serves many of ours in turn.

    Attributes:
        kept: the numbers of MuJoCo that are state, float64 [n] each, and their places in a state.
        size: of a state, uint32.
        failures: MuJoCo's counts of positions, velocities and accelerations that were not finite.
    """

    def __init__(self, env: Any, scalars: list[str]):
        import mujoco

        self.env, self.scalars = env, scalars
        fields = [getattr(env.data, field).reshape(-1) for field in KEPT]
        ends = np.cumsum([0, *(x.size for x in fields)])
        self.kept = [(x, slice(*ends[i : i + 2])) for i, x in enumerate(fields) if x.size]
        self.size = 2 * int(ends[-1])
        first, last = mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQACC
        self.failures = env.data.warning.number[int(first) : int(last) + 1]

    def reset(self, row: np.ndarray, out: np.ndarray) -> None:
        """Start the episode of a seed, uint32 [2]."""
        obs, _ = self.env.reset(seed=int.from_bytes(row.tobytes(), "little"))
        self.write(out, obs, 0.0, False, {})

    def step(self, row: np.ndarray, out: np.ndarray) -> None:
        """Step from a state with an action, float32, which follows it in the row."""
        self.restore(row)
        self.failures.fill(0)
        obs, reward, terminated, _, info = self.env.step(row[self.size :].view(np.float32))
        reward = np.nan if self.failures.any() else reward  # MuJoCo has reset itself: all numbers are finite
        self.write(out, obs, reward, terminated, info)

    def restore(self, row: np.ndarray) -> None:
        """Give MuJoCo the state with which the row begins."""
        numbers = row[: self.size].view(np.float64)
        for field, place in self.kept:
            field[:] = numbers[place]

    def write(self, out: np.ndarray, obs: np.ndarray, reward: float, terminated: bool, info: dict[str, Any]) -> None:
        """Write the state and what the environment told."""
        numbers, told = out[: self.size].view(np.float64), out[self.size :].view(np.float32)
        for field, place in self.kept:
            numbers[place] = field
        scalars = [info.get(key, 0.0) for key in self.scalars]
        told[: 2 + len(scalars)] = reward, terminated, *scalars
        told[2 + len(scalars) :] = obs
