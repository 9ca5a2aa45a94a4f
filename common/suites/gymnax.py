"""gymnax (Lange 2022), small and fast environments, discrete and continuous actions: `--env CartPole-v1`.

Options are fields of the environment's parameters or arguments of its class: `DeepSea-bsuite:size=20`.
"""

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterable
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments.environment import Environment

from common import suites

REQUIREMENT = "gymnax==1.0.1"
LIMIT = "max_steps_in_episode"  # gymnax' name of max_episode_steps
MAX_ARGUMENT = 10_000  # integers of a class are sizes: DeepSea makes arrays of the square of its own
FACTORIES = gymnax.registration._registry  # by id, also those of `gymnax.register`
# Fields that follow from others: an option that changes one changes all.
DERIVED = {
    "CartPole-v1": lambda x: {"total_mass": x.masscart + x.masspole, "polemass_length": x.masspole * x.length},
    "BernoulliBandit-misc": lambda x: {"t_max": int(x.max_steps_in_episode)},
}
# gymnax draws these itself, and classic control with Gymnasium.
DRAWN_BY_GYMNASIUM = ("Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")
DRAWN_BY_GYMNAX = (
    *(f"{game}-MinAtar" for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")),
    *("Catch-bsuite", "FourRooms-misc", "MetaMaze-misc", "PointRobot-misc", "Pong-misc"),
)


def names() -> list[str]:
    """All registered ids, also those of `gymnax.register`."""
    return gymnax.registered_envs


class Suite(suites.Suite):
    """One environment. A Discrete observation becomes a one-hot float32 vector."""

    reset_period = 0

    @classmethod
    def options(cls, name: str) -> dict[str, Any]:
        """Arguments of the environment's class, and fields of its parameters."""
        env, params = gymnax.make(name)
        fields = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
        fields |= {LIMIT: int(fields[LIMIT])} if LIMIT in fields else {}
        return suites.arguments(type(env)) | fields

    def __init__(self, name: str, max_episode_steps: int | None = None, **options: Any):
        env, params = gymnax.make(name)
        if type(env).step is not Environment.step and name != "DeepSea-bsuite":
            raise ValueError(
                f"{name} has a `step` of its own; give it `step_env` and `reset_env` instead, as gymnax does"
            )
        fields = {field.name for field in dataclasses.fields(params)}
        sizes = {key: x for key, x in options.items() if key not in fields}
        for key, size in sizes.items():
            if type(size) is int and size > MAX_ARGUMENT:
                raise ValueError(f"{key} of {name} must be at most {MAX_ARGUMENT}, not {size}")
        if sizes:
            env, params = gymnax.make(name, **sizes)
        params = params.replace(**{key: x for key, x in options.items() if key in fields})
        if max_episode_steps is not None and LIMIT in fields:  # some observations have the share of time that is left
            params = params.replace(**{LIMIT: type(getattr(params, LIMIT))(max_episode_steps)})
        for key, value in DERIVED.get(name, lambda _: {})(params).items():
            if not math.isclose(options.get(key, value), value, rel_tol=1e-6):
                raise ValueError(f"{key} of {name} is {value:g} with its other options, not {options[key]:g}")
            params = params.replace(**{key: value})
        self.name, self.env, self.params = name, env, params
        self.action_space = self.env.action_space(self.params)
        self.num_observations = getattr(self.env.observation_space(self.params), "n", None)  # of a Discrete space
        limit = getattr(self.params, LIMIT, max_episode_steps)
        self.max_episode_steps = None if limit is None else int(limit)
        self.is_small = not name.endswith("-MinAtar")  # a minute more of compiling would save seconds
        self.has_own_rule = type(self.env).is_truncated is not Environment.is_truncated
        if options:  # an error of theirs belongs here
            key = jax.eval_shape(jax.random.key, 0)
            jax.eval_shape(lambda key: self.step(key, self.reset(key)[1], self.action_space.sample(key)), key)

    def _convert(self, obs: jax.Array) -> jax.Array:
        if self.num_observations is None:
            return obs
        return jax.nn.one_hot(obs, self.num_observations, dtype=jnp.float32)

    def reset(self, key: jax.Array):
        """`key -> obs, state`."""
        obs, state = self.env.reset_env(key, self.params)
        return self._convert(obs), state

    def step(self, key: jax.Array, state: Any, action: jax.Array):
        """`-> obs, state, reward, terminated, info`; `truncated` where the environment has a rule of its own."""
        obs, state, reward, terminated, info = self.env.step_env(key, state, action, self.params)
        info = {name: x for name, x in info.items() if name != "discount"}
        if self.has_own_rule:
            info["truncated"] = self.env.is_truncated(state, self.params)
        return self._convert(obs), state, reward, terminated, info

    def renderer(self):
        """The file's ending, and a function that writes an animation. Raises ValueError if gymnax cannot draw it."""
        drawable = {*DRAWN_BY_GYMNASIUM, *DRAWN_BY_GYMNAX}
        if self.name not in drawable:
            raise ValueError(f"gymnax draws only {', '.join(sorted(drawable))}")
        if self.name in DRAWN_BY_GYMNASIUM:
            return ".gif", lambda states, returns, path: suites.write_gif(self._draw_classic(states, returns), path, 50)
        return ".gif", lambda states, returns, path: suites.write_gif(self._draw_figure(states, returns), path)

    # gymnax' own Visualizer.animate draws each frame three times and starts and ends pygame for each.

    def _draw_classic(self, states: Iterable[Any], returns: np.ndarray):
        """Classic control, drawn by Gymnasium; yields uint8 [height, width, 3]."""
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # Gymnasium draws with pygame: no window, no sound
        os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
        import gymnasium
        from gymnax.visualize.vis_gym import get_gym_state, set_gym_params
        from PIL import Image, ImageDraw

        with contextlib.closing(gymnasium.make(self.name, render_mode="rgb_array")) as drawing:
            drawing.reset()
            set_gym_params(drawing.unwrapped, self.name, self.params)
            for i, state in enumerate(states):
                drawing.unwrapped.state = get_gym_state(state, self.name)
                if self.name == "Pendulum-v1":
                    drawing.unwrapped.last_u = np.asarray(state.last_u, np.float64)  # the arrow of the torque
                image = Image.fromarray(drawing.render())
                ImageDraw.Draw(image).text((8, 4), f"step {i + 1}, return {returns[i]:.2f}", "black", font_size=18)
                yield np.asarray(image)

    def _draw_figure(self, states: Iterable[Any], returns: np.ndarray):
        """The others, drawn by gymnax with matplotlib; yields uint8 [height, width, 3]."""
        import matplotlib

        matplotlib.use("agg")
        from gymnax.visualize import Visualizer
        from matplotlib import pyplot

        drawing = Visualizer(self.env, self.params, [], returns)
        for i, state in enumerate(states):
            drawing.state_seq.append(state)
            if i == 0:
                drawing.init()
            drawing.update(i)
            drawing.fig.canvas.draw()
            yield np.asarray(drawing.fig.canvas.buffer_rgba())[..., :3]
        pyplot.close(drawing.fig)
