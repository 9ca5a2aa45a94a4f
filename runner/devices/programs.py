"""The compiled programs of a run."""

import copy
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common.buffer import Buffer, add, read
from common.environment import Environment
from runner.devices.evaluation import episode_limit, evaluate, greedy_policy, sampled_policy
from runner.devices.memory import format_bytes, program_bytes, share_of_memory
from runner.devices.placement import compile_init, compile_program, compile_segment, is_finite, make_placement, to_host
from runner.experiment import Experiment, Part

MAX_SEGMENT = 256  # iterations in one segment


def check_scalars(env_name: str, env: Environment, algorithm: Any) -> None:
    """Raise ValueError if a scalar of the environment has the name of a metric of the script: one would be lost."""
    if not (scalars := env.scalars):
        return
    env.scalars = []
    try:
        state = jax.eval_shape(algorithm.init, jax.eval_shape(jax.random.key, 0))
        _, metrics = jax.eval_shape(algorithm.step, state, jax.ShapeDtypeStruct((), np.int32))
    finally:
        env.scalars = scalars
    for name in scalars:
        if name in metrics:
            raise ValueError(f"the scalar {name} in the info of {env_name} has the name of another metric: rename it")


def cut_newest(buffer: Buffer, n: int) -> Buffer:
    """Mark the newest n transitions as truncated, if they have this field: the next ones are of other episodes."""
    newest = read(buffer, (buffer.count - n + jnp.arange(n, dtype=jnp.int32)) % buffer.capacity)
    if getattr(newest, "truncated", None) is None:
        return buffer
    newest = newest.replace(truncated=jnp.ones_like(newest.truncated))
    return add(buffer.replace(count=buffer.count - n), newest)


class Programs:
    """Initialisation, training and evaluation of `num_trials` trials, the same programs for every part.

    Initialisation and evaluation are compiled in a thread, in parallel with training.
    """

    def __init__(self, experiment: Experiment, abstract_state: Any, num_trials: int, num_devices: int):
        self.experiment, self.abstract_state, self.num_trials = experiment, abstract_state, num_trials
        devices_per_trial, num_envs = experiment.options.devices_per_trial, experiment.config.num_envs
        self.placement = make_placement(num_trials, num_devices, devices_per_trial, num_envs)
        self.capacity = min(experiment.config.num_iterations, MAX_SEGMENT)  # iterations in a call
        settings = {name: jax.ShapeDtypeStruct((), x.dtype) for name, x in experiment.settings.items()}
        self.settings, self.state = self.placement.abstract(settings), self.placement.abstract(abstract_state)
        self.compile_seconds = 0.0
        self.threads = ThreadPoolExecutor(max_workers=1)

    def with_experiment(self, experiment: Experiment) -> "Programs":
        """These programs with another experiment, of as many trials."""
        copied = copy.copy(self)
        copied.experiment, copied.compile_seconds = experiment, 0.0
        return copied

    def inputs(self, part: Part) -> tuple[dict[str, jax.Array], jax.Array]:
        """Settings and keys of a part, placed on the devices."""
        experiment, rows = self.experiment, slice(part.start, part.stop)
        settings = {name: x[rows] for name, x in experiment.trial_settings.items()}
        keys = jax.vmap(jax.random.key)(experiment.trial_seeds[rows])
        return self.placement.place((settings, keys))

    @cached_property
    def init(self) -> Future:
        """Future of the compiled `(settings, keys) -> State`; the first access starts the compilation."""
        return self.threads.submit(compile_init, self.experiment.make_trial, self.placement, self.settings)

    def refill(self, part: Part) -> Any:
        """`state.buffer` of random transitions, from which no n-step window leads to later ones."""
        buffer, num_envs = self.init.result()(*self.inputs(part)).buffer, self.experiment.config.num_envs
        is_buffer = lambda x: isinstance(x, Buffer)
        cut_one = lambda x: cut_newest(x, num_envs) if is_buffer(x) else x
        cut = self.placement.each(lambda tree: jax.tree.map(cut_one, tree, is_leaf=is_buffer))
        shardings = jax.tree.map(lambda x: x.sharding, self.state.buffer)
        return jax.jit(cut, donate_argnums=0, out_shardings=shardings)(buffer)

    @cached_property
    def segment(self) -> Callable:
        """`(settings, State, start, stop) -> (State, metrics)`."""
        started = time.perf_counter()
        print("compiling ...", flush=True)
        if not self.experiment.options.resume:
            _ = self.init
        if self.experiment.options.eval_episodes:
            _ = self.evaluation
        segment = compile_segment(self.experiment.make_trial, self.placement, self.settings, self.state, self.capacity)
        if not self.experiment.options.resume:
            self.init.result()  # training begins with it
        self.compile_seconds = time.perf_counter() - started
        used = format_bytes(program_bytes(segment))
        print(f"compiled in {self.compile_seconds:.1f} s, {used} on each device", flush=True)
        return segment

    @property
    def share_of_memory(self) -> float:
        """Memory that training takes, as a share of what its devices have."""
        return share_of_memory(self.segment, self.placement.sharding.num_devices)

    @cached_property
    def evaluation(self) -> Future:
        """Future of the compiled `(settings, State, keys, iteration, batch) -> episodes` and its episodes per trial."""
        return self.threads.submit(self._compile_evaluation)

    def _compile_evaluation(self) -> tuple[Callable, int]:
        num_episodes = self.experiment.options.eval_episodes
        keys = self.placement.abstract(jax.eval_shape(jax.random.key, 0))
        while True:

            def play(settings, state, key, iteration, batch, num_episodes=num_episodes):
                # Training folds nothing into a trial's key, so evaluation never uses a key of training.
                for number in (np.uint32(2**32 - 1), iteration, batch):
                    key = jax.random.fold_in(key, number)
                algorithm, env = self.experiment.make_trial(settings), self.experiment.env
                if self.experiment.options.eval_sampled:
                    key, action_key = jax.random.split(key)
                    act, memory = sampled_policy(algorithm, state, num_episodes, action_key)
                else:
                    act, memory = greedy_policy(algorithm, state, num_episodes)
                limit = episode_limit(env, self.experiment.options.eval_max_steps)
                return evaluate(env, act, memory, key, num_episodes, limit)

            inputs = self.settings, self.state, keys, np.uint32(0), np.uint32(0)
            function = self.placement.each(play, num_shared=2, in_groups=True)
            program = compile_program(jax.jit(function, out_shardings=self.placement.sharding), *inputs)
            share = share_of_memory(program, self.placement.sharding.num_devices)
            if share <= 1 or num_episodes == 1:
                return program, num_episodes
            num_episodes = max(1, int(num_episodes / share))

    def evaluate(self, part: Part, state: Any, iteration: int) -> dict[str, np.ndarray]:
        """Mean return and length over `eval_episodes` whole episodes, and the number of those that were cut.

        After each iteration a trial plays other episodes, which do not depend on when it was evaluated before.

        Returns:
            [num_trials] each.
        """
        total = self.experiment.options.eval_episodes
        if not self.evaluation.done():
            print("waiting for the evaluation program to compile ...", flush=True)
        (settings, keys), (program, num_episodes) = self.inputs(part), self.evaluation.result()
        num_batches = -(-total // num_episodes)
        numbers = [(np.uint32(iteration), np.uint32(batch)) for batch in range(num_batches)]
        batches = [to_host(program(settings, state, keys, *number), part.num_trials) for number in numbers]
        episodes = jax.tree.map(lambda *x: np.concatenate(x, axis=1)[:, :total], *batches)
        return {
            "eval_episode_return": episodes["episode_return"].mean(axis=1),
            "eval_episode_length": episodes["episode_length"].mean(axis=1),
            "eval_cut_episodes": episodes["is_cut"].sum(axis=1),
        }

    def is_healthy(self, part: Part, state: Any) -> np.ndarray:
        """Whether all parameters are finite, [num_trials] bool."""
        return to_host(jax.jit(is_finite)(state.params), part.num_trials)
