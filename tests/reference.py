"""The computations of the algorithms in plain float64 numpy: networks, gradients, Adam."""

import jax
import numpy as np


def to_float64(tree):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


ACTIVATIONS = {"tanh": np.tanh, "relu": lambda x: np.maximum(x, 0)}


def dense(layer, x):
    return x @ layer["kernel"] + layer["bias"]


def layer_norm(norm, x):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return x * norm["scale"] + norm["bias"]


def mlp(torso, head, x, activation):
    """Dense layers, each with its LayerNorm if the torso has one, and a linear head, x [..., n]."""
    num_layers, num_norms = (sum(name.startswith(kind) for name in torso) for kind in ("Dense", "LayerNorm"))
    for i in range(num_layers):
        x = dense(torso[f"Dense_{i}"], x)
        if num_norms:
            x = layer_norm(torso[f"LayerNorm_{i}"], x)
        x = ACTIVATIONS[activation](x)
    return dense(head, x)


def normalized(statistics, obs):
    """(obs - mean) / std, clipped; without statistics obs itself."""
    obs = np.asarray(obs, np.float64)
    if statistics is None:
        return obs
    mean, variance = to_float64((statistics.mean, statistics.variance))
    return np.clip((obs - mean) / np.sqrt(variance + 1e-8), -10, 10)


def numerical_gradient(loss, params, step=1e-6):
    """Central differences."""
    leaves, structure = jax.tree.flatten(params)
    leaves = [np.array(leaf) for leaf in leaves]
    grads = [np.zeros_like(leaf) for leaf in leaves]
    for leaf, grad in zip(leaves, grads, strict=True):
        for index in np.ndindex(leaf.shape):
            center = leaf[index]
            leaf[index] = center + step
            above = loss(jax.tree.unflatten(structure, leaves))
            leaf[index] = center - step
            below = loss(jax.tree.unflatten(structure, leaves))
            leaf[index] = center
            grad[index] = (above - below) / (2 * step)
    return jax.tree.unflatten(structure, grads)


def global_norm(grads):
    """Euclidean norm of all gradients together."""
    return np.sqrt(sum((grad**2).sum() for grad in jax.tree.leaves(grads)))


class Adam:
    """Kingma & Ba 2015, algorithm 1."""

    def __init__(self, params):
        self.mean, self.square, self.count = (
            jax.tree.map(np.zeros_like, params),
            jax.tree.map(np.zeros_like, params),
            0,
        )

    def step(self, params, grads, learning_rate, eps=1e-8):
        """The parameters after one step."""
        self.count += 1
        self.mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, self.mean, grads)
        self.square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, self.square, grads)
        mean_scale, square_scale = 1 - 0.9**self.count, 1 - 0.999**self.count
        return jax.tree.map(
            lambda p, m, v: p - learning_rate * (m / mean_scale) / (np.sqrt(v / square_scale) + eps),
            params,
            self.mean,
            self.square,
        )
