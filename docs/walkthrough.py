# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# <!-- Make the notebook, from the root of the repository:
# jupytext --to ipynb --output - docs/walkthrough.py | jupyter nbconvert --stdin --to notebook --execute
# --output-dir docs --output walkthrough.ipynb -->
#
# # Walkthrough: PPO on CartPole, from one seed to a new loss
#
# This notebook trains PPO with one seed, with twenty seeds and with several learning rates. Then it changes the loss,
# compares the two versions, and looks at a trained policy. It takes about two minutes on two CPU cores.
#
# - **On your computer:** install as the README says, and `pip install ipykernel`. Open the notebook in VS Code or
#   Jupyter with the Python of that environment.
# - **In Colab:** open the notebook with File > Open notebook > Upload. Run these lines in a new cell above the first
#   one, with the address of the repository in the place of ADDRESS. If Colab asks you to restart the session, restart
#   it and run the second line again.
#
# ```text
# !git clone ADDRESS repository
# %cd repository
# !pip install -r requirements.txt
# ```

# %%
import sys

sys.path.insert(0, "..")  # the repository, where the notebook runs in docs/

import difflib
import importlib
import inspect
import tempfile
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

import ppo
from common.environment import make_env
from common.presets import preset
from runner.devices.evaluation import greedy_policy
from runner.render import play_episode
from runner.report import statistics
from runner.report.plots import style

# %% [markdown]
# ## The settings
#
# `Config` is a frozen dataclass with every setting of `ppo.py`. The presets are the settings tuned for each
# environment. We take the preset of CartPole and shorten the run, so that the curves below do not all end at 500, the
# highest possible return.

# %%
config = preset(ppo.Config, "CartPole-v1", total_timesteps=12_000)
print({name: x for name, x in vars(config).items() if x != getattr(ppo.Config(), name)})

# %% [markdown]
# ## One seed
#
# `make_train(config)` returns a function `train(key)` that does the whole run: it initialises networks and
# environments, collects rollouts and updates the networks. All of it is JAX, so `jax.jit` compiles the run to one
# program. No Python runs between two env steps.
#
# `train` returns the final state (parameters, optimiser, environments, random key) and the metrics, one number per
# iteration. An iteration is one rollout of `num_envs * num_steps` env steps and its updates.

# %%
key = jax.random.key(0)
state, metrics = jax.jit(ppo.make_train(config))(key)
print(*metrics, sep=", ")
print("each of shape", metrics["entropy"].shape)


# %% [markdown]
# `episode_return` is the mean over the episodes that ended in an iteration. An iteration in which no episode ended has
# no mean: the metric is NaN there, and the plot has a gap.


# %%
def plot(title, ylabel, xlabel="env steps per seed"):
    _, axes = plt.subplots(figsize=(6, 3.4), dpi=80, layout="constrained")
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    style(axes)
    return axes


env_steps = config.env_steps(np.arange(config.num_iterations) + 1)
axes = plot("PPO on CartPole-v1, one seed", "episode return")
_ = axes.plot(env_steps, metrics["episode_return"])

# %% [markdown]
# ## Twenty seeds
#
# One seed says little about an algorithm: other seeds learn earlier, later or not at all. `jax.vmap` turns the function
# of one key into a function of twenty keys. The result is still one program. Each operation now computes all twenty
# seeds at once, for example one batched matrix product in place of twenty small ones.
#
# One seed of one setting is a *trial*. Trials share no data: each has its own parameters, environments and random key.
# A trial computes what it would compute alone, up to floating-point rounding.

# %%
keys = jax.vmap(jax.random.key)(jnp.arange(20))
states, metrics = jax.jit(jax.vmap(ppo.make_train(config)))(keys)
metrics = jax.device_get(metrics)  # numpy arrays
print(metrics["episode_return"].shape, "= seeds, iterations")

# %% [markdown]
# The interquartile mean (IQM) is the mean of the middle half of the seeds. Its 95 % interval comes from a bootstrap
# over seeds ([Agarwal et al. 2021](https://arxiv.org/abs/2108.13264)). The score of each seed is the mean return of the
# episodes that ended in the second half of training.


# %%
def curve_of(metrics):
    return statistics.learning_curve(env_steps, metrics["episode_return"], metrics["num_episodes"])


def scores_of(metrics):
    returns, counts = (metrics[name][:, -config.num_iterations // 2 :] for name in ("episode_return", "num_episodes"))
    return np.nansum(returns * counts, axis=1) / counts.sum(axis=1)


def plot_curve(axes, curve, color, label):
    axes.plot(curve.env_steps, curve.iqm, color=color, label=label)
    axes.fill_between(curve.env_steps, curve.ci_low, curve.ci_high, color=color, alpha=0.2, linewidth=0)


curve, scores = curve_of(metrics), scores_of(metrics)
axes = plot("PPO on CartPole-v1, 20 seeds", "episode return")
axes.plot(curve.env_steps, curve.returns.T, color="tab:gray", linewidth=0.5, alpha=0.5)
plot_curve(axes, curve, "tab:blue", "IQM, 95 % interval")
axes.legend(frameon=False)

summary = statistics.summarize(scores)
print({name: round(x, 1) for name, x in summary.items()})

# %% [markdown]
# ## A sweep inside vmap
#
# A float of `Config` may be a traced array. So a setting can be an argument of the function, and `vmap` can map over it
# as it maps over keys. The inner `vmap` maps over keys, the outer one over learning rates. Five learning rates times
# four seeds are 20 trials of one program, which is compiled once. Integers, booleans and strings of `Config` shape the
# program (an array size, a branch), so each of their values needs a compilation of its own.


# %%
def train_with(learning_rate, key):
    return ppo.make_train(replace(config, learning_rate=learning_rate))(key)


learning_rates = jnp.array([1e-4, 3e-4, 1e-3, 3e-3, 1e-2])
sweep = jax.jit(jax.vmap(jax.vmap(train_with, (None, 0)), (0, None)))
_, sweep_metrics = jax.device_get(sweep(learning_rates, keys[:4]))
print(sweep_metrics["episode_return"].shape, "= learning rates, seeds, iterations")

# %%
axes = plot("PPO on CartPole-v1, 4 seeds of each setting", "return, second half", xlabel="learning rate")
summaries = [statistics.summarize(scores_of(jax.tree.map(lambda x, i=i: x[i], sweep_metrics))) for i in range(5)]
low, middle, high = ([summary[name] for summary in summaries] for name in ("ci_low", "iqm", "ci_high"))
axes.fill_between(learning_rates, low, high, alpha=0.2, linewidth=0)
axes.plot(learning_rates, middle, "o-", label="IQM, 95 % interval")
axes.legend(frameon=False)
axes.set_xscale("log")

# %% [markdown]
# If the best value is the first or the last of the grid, extend the grid.
#
# ## Another loss
#
# Each algorithm is one file. To change it, copy the file and edit the copy. Here we do this in code, so that the
# notebook stands alone; in your work, use an editor.
#
# PPO clips the ratio of the new to the old probability of an action. Simple Policy Optimization
# ([Xie et al. 2024](https://arxiv.org/abs/2401.16025)) replaces the clip with a quadratic penalty:
#
# $$\mathbb{E}\left[ r A - \frac{|A|}{2 \epsilon} (r - 1)^2 \right]$$
#
# with the ratio $r$, the advantage $A$ and the clip range $\epsilon$. We change one line of `loss` and add the penalty
# to the metrics.

# %%
source = inspect.getsource(ppo)
edits = {
    "        policy_loss = -jnp.minimum(ratio * advantage, clipped_ratio * advantage).mean()\n": (
        "        penalty = (jnp.abs(advantage) * (ratio - 1) ** 2).mean() / (2 * config.clip_eps)\n"
        "        policy_loss = penalty - (ratio * advantage).mean()\n"
    ),
    '            "entropy": entropy,\n': '            "entropy": entropy,\n            "penalty": penalty,\n',
}
my_source = source
for old, new in edits.items():
    assert source.count(old) == 1, old
    my_source = my_source.replace(old, new)

folder = Path(tempfile.mkdtemp())  # in your work: beside ppo.py
(folder / "my_ppo.py").write_text(my_source)
diff = difflib.unified_diff(source.splitlines(True), my_source.splitlines(True), "ppo.py", "my_ppo.py", n=0)
print(*(line for line in diff if not line.startswith("@@")), sep="")

# %% [markdown]
# The copy is a module like `ppo.py`. We train it with the same settings and the same twenty keys.

# %%
sys.path.insert(0, str(folder))
my_ppo = importlib.import_module("my_ppo")
my_config = my_ppo.Config(**vars(config))
my_states, my_metrics = jax.jit(jax.vmap(my_ppo.make_train(my_config)))(keys)
my_metrics = jax.device_get(my_metrics)
print("new metrics:", sorted(my_metrics.keys() - metrics.keys()))

# %%
axes = plot("The new metric, 20 seeds", "penalty")
axes.plot(env_steps, statistics.iqm(my_metrics["penalty"]), color="tab:orange", label="penalty, IQM")
axes.legend(frameon=False)

axes = plot("Share of ratios outside the clip range, 20 seeds", "clip_fraction")
for name, x, color in (("clip", metrics, "tab:blue"), ("penalty", my_metrics, "tab:orange")):
    axes.plot(env_steps, statistics.iqm(x["clip_fraction"]), color=color, label=f"{name}, IQM")
axes.legend(frameon=False)

axes = plot("PPO on CartPole-v1, 20 seeds", "episode return")
plot_curve(axes, curve, "tab:blue", "clip, IQM and 95 % interval")
plot_curve(axes, curve_of(my_metrics), "tab:orange", "penalty, IQM and 95 % interval")
_ = axes.legend(frameon=False)

# %% [markdown]
# ## Is it better?
#
# P(A > B) is the probability that a random seed of A scores higher than a random seed of B; ties count half. If its
# 95 % interval contains 0.5, these seeds do not show a difference.

# %%
my_scores = scores_of(my_metrics)
for name, x in (("clip", scores), ("penalty", my_scores)):
    summary = statistics.summarize(x)
    print(f"{name:8} IQM {summary['iqm']:5.1f}, 95 % interval {summary['ci_low']:.1f} to {summary['ci_high']:.1f}")
probability, low, high = statistics.probability_of_improvement([(my_scores, scores)])
print(f"P(penalty > clip) = {probability:.2f}, 95 % interval {low:.2f} to {high:.2f}")

# %% [markdown]
# The preset was tuned for the clip, and this is one environment and a short run. Test your own idea on several
# environments, and tune the settings of both versions with equal effort.
#
# ## A trained policy
#
# The twenty final states have a leading axis of trials. One index takes one trial out. `make(config)` has the functions
# that use its state: `act` chooses actions, `value` estimates the return from an observation.

# %%
algorithm = ppo.make(config)
best = int(np.argmax(scores))
state = jax.tree.map(lambda x: x[best], states)

# [cart position, cart velocity, pole angle, angular velocity]
obs = jnp.array([[0.0, 0.0, 0.1, 0.0], [0.0, 0.0, -0.1, 0.0]])
print("greedy action:", algorithm.act(state, obs))
print("sampled action:", algorithm.act(state, obs, jax.random.key(1)))
print("value:", algorithm.value(state, obs))

# %% [markdown]
# Both take any number of observations. The next picture has the value and the greedy action of a cart at rest in the
# middle of the track, for each angle and angular velocity of the pole.

# %%
angle, velocity = np.meshgrid(np.linspace(-0.2, 0.2, 81), np.linspace(-2, 2, 81))
grid = jnp.stack([jnp.zeros_like(angle), jnp.zeros_like(angle), angle, velocity], axis=-1).reshape(-1, 4)
value = algorithm.value(state, grid).reshape(angle.shape)
action = algorithm.act(state, grid).reshape(angle.shape)

axes = plot("Value; below the white line: push left, above: right", "angular velocity", xlabel="pole angle (rad)")
image = axes.pcolormesh(angle, velocity, value, rasterized=True)
axes.contour(angle, velocity, action, levels=[0.5], colors="white")
_ = axes.figure.colorbar(image, label="value")

# %% [markdown]
# Now we play one episode with the untrained policy and one with the trained policy, and draw the first, the middle and
# the last step of each. `env.suite.renderer()` returns the function with which `python -m runner.render` draws an
# episode of a saved run.

# %%
env = make_env(config.env)
_, render = env.suite.renderer()
_, panels = plt.subplots(2, 3, figsize=(7, 3.4), dpi=80, layout="constrained")
policies = {"untrained": algorithm.init(jax.random.key(0)), "trained": state}
for row, (name, policy) in zip(panels, policies.items(), strict=True):
    played, returns = play_episode(env, *greedy_policy(algorithm, policy, 1), jax.random.key(0), max_steps=500)
    shown = [0, len(played) // 2, len(played) - 1]
    render([played[i] for i in shown], returns[shown], str(folder / "episode.gif"))
    with Image.open(folder / "episode.gif") as animation:
        for frame, axes in enumerate(row):
            animation.seek(frame)
            axes.imshow(animation.convert("RGB").crop((100, 150, 500, 350)))
            axes.set_title(f"{name}, step {shown[frame] + 1}", fontsize="medium")
            axes.axis("off")

# %% [markdown]
# ## From here
#
# - The command line does the same and saves the run, with evaluations and checkpoints:
#   `python ppo.py --env CartPole-v1 --num-seeds 20`.
# - `python -m runner.compare` compares saved runs with the statistics of this notebook.
# - [All pages](README.md): the algorithms, environments, sweeps and devices.
