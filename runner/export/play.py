"""Play an exported policy in Gymnasium. This file needs numpy, onnxruntime and gymnasium alone, and pillow to draw."""

import argparse
import json
import os

import numpy as np


def play(session, env, inputs, memory, seed, draws):
    """Play an episode and return its return and, if it draws, the pictures of its steps."""
    obs, total, done, pictures = env.reset(seed=seed)[0], 0.0, False, []
    while not done:
        pictures += [env.render()] if draws else []
        given = {x: np.asarray(obs[x] if isinstance(obs, dict) else obs, kind)[None] for x, (kind, _) in inputs.items()}
        action, *after = session.run(None, given | memory)
        memory = dict(zip(memory, after, strict=True))
        obs, reward, terminated, truncated, _ = env.step(action[0] if action[0].shape else int(action[0]))
        total, done = total + float(reward), terminated or truncated
    return total, pictures


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("policy", help="file that python -m runner.export wrote")
parser.add_argument("--gymnasium", required=True, metavar="ENV", help="environment of Gymnasium")
parser.add_argument("--episodes", type=int, default=100)
parser.add_argument("--seed", type=int, default=0, help="seed of the first episode; the others count on")
parser.add_argument("--render", metavar="FILE.gif", help="draw the first episode")
args = parser.parse_args()
os.environ |= {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}  # pygame draws without a window
try:
    import gymnasium
    import onnxruntime

    if args.episodes < 1:
        raise ValueError(f"--episodes must be at least 1, not {args.episodes}")
    session = onnxruntime.InferenceSession(args.policy, providers=["CPUExecutionProvider"])
    metadata = {name: json.loads(x) for name, x in session.get_modelmeta().custom_metadata_map.items()}
    inputs = {x.name: (x.type[7:-1].replace("float", "float32"), tuple(x.shape[1:])) for x in session.get_inputs()}
    memory = {name: np.asarray([x], inputs.pop(name)[0]) for name, x in metadata["initial_memory"].items()}
    env = gymnasium.make(args.gymnasium, **({"render_mode": "rgb_array"} if args.render else {}))
    seen, space, actions = env.observation_space, env.action_space, metadata["action_space"]
    for name, (kind, shape) in inputs.items():
        part = seen.spaces.get(name) if hasattr(seen, "spaces") else seen
        if part is None or part.shape != shape or not np.can_cast(part.dtype, kind, "same_kind"):
            raise ValueError(f"{args.gymnasium} has observations {seen}, the policy takes {name} {shape} {kind}")
    pairs = [(np.asarray(getattr(space, name, np.nan)), np.asarray(x)) for name, x in actions.items()]
    if getattr(space, "start", 0) or not all(x.shape == y.shape and np.allclose(x, y) for x, y in pairs):
        raise ValueError(f"{args.gymnasium} has actions {space}, those of the policy are {actions}")
    played = [play(session, env, inputs, memory, args.seed + i, args.render and i < 1) for i in range(args.episodes)]
    x = np.sort([total for total, _ in played])
    print(f"{args.gymnasium}, {len(x)} episodes: mean {x.mean():.2f}, ", end="")
    print(f"IQM {x[len(x) // 4 : len(x) - len(x) // 4].mean():.2f}, min {x[0]:.2f}, max {x[-1]:.2f}")
    if args.render:
        from PIL import Image

        (first, *others), fps = map(Image.fromarray, played[0][1]), env.metadata["render_fps"]
        first.save(args.render, save_all=True, append_images=others, loop=0, duration=1000 // fps)
except Exception as error:  # it says what is missing or does not fit
    parser.exit(2, f"error: {' '.join(str(error).split())}\n")
