"""Lines of the diffs of docs/papers.md, beside public scripts of the same papers: writes results/papers.png.

Counted are the lines that a diff adds and removes, and those of new files that the changed script alone reads, without
blank lines. A public script is compared with the nearest one without the paper in its repository. In a clone,

    diff <(git show COMMIT:BEFORE | grep -v '^[[:space:]]*$') <(git show COMMIT:AFTER | grep -v '^[[:space:]]*$') |
        grep -c '^[<>]'                                  # changed lines
    git show COMMIT:FILE | grep -vc '^[[:space:]]*$'     # of each new file
"""

import re

from matplotlib.figure import Figure
from papers import PAGE
from tables import FOLDER

from runner.report.plots import style

FORKS = {  # paper -> repository, commit, script before and after, changed lines, lines of new files
    # The script before has another curiosity, ICM.
    "RND": (
        *("MichaelTMatthews/Craftax_Baselines", "7ce36fa05b84a2c9e758012f1e6da402e1e3a891"),
        *("ppo.py", "ppo_rnd.py", 412, {"models/rnd.py": 98}),
    ),
    # The script after also has ACCEL's mutated levels.
    "PLR": (
        *("DramaCow/jaxued", "0f8f1284677375b889e4f13a32c9617cd009f8c4"),
        *("examples/maze_dr.py", "examples/maze_plr.py", 369),
        {"src/jaxued/level_sampler.py": 338, "src/jaxued/wrappers/autoreplay.py": 46},
    ),
    "S5": (
        *("luchris429/popjaxrl", "12e5d42be3a6bde81cce4234f8be4e119e4318b6"),
        *("algorithms/ppo_gru.py", "algorithms/ppo_s5.py", 147, {"algorithms/s5.py": 535}),
    ),
}

bars = []  # label, changed lines, lines of new files, colour of Okabe and Ito
for paper, diff in re.findall(r"^## (\w+):.*?^```diff\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE):
    bars.append((paper, len(re.findall(r"^[+-].*\S", diff, re.MULTILINE)), 0, "#0072B2"))
    if paper in FORKS:
        repository, _, _, _, changed, files = FORKS[paper]
        bars.append((repository.partition("/")[2], changed, sum(files.values()), "#E69F00"))
labels, changed, new, colors = zip(*bars, strict=True)
figure = Figure(figsize=(5.2, 3.9), layout="constrained")
axes = figure.subplots()
axes.barh(labels, changed, color=colors, edgecolor="white")
ends = axes.barh(labels, new, left=changed, color=colors, edgecolor="white", hatch="////")
axes.bar_label(ends, [f"{x} + {y}" if y else f"{x}" for x, y in zip(changed, new, strict=True)], padding=3)
axes.invert_yaxis()
axes.margins(x=0.2, y=0.02)
axes.set_xlabel("lines added and removed + lines of new files")
style(axes)
axes.set_axisbelow(True)
axes.grid(visible=False, axis="y")
figure.savefig(FOLDER / "results" / "papers.png", dpi=150)
print(*bars, sep="\n")
