"""Scores of the presets over many seeds: for each script and environment a raw file, a row and a curve.

    python benchmarks/results.py                          # every pair that has no raw file yet
    python benchmarks/results.py --only ppo/CartPole-v1   # this one, again, next to what is recorded
    python benchmarks/results.py --gpu                    # the pairs of GPU size, on a GPU, instead of the others
    python benchmarks/results.py --report                 # pages and pictures, from the raw files alone
    python benchmarks/results.py --stale                  # the rows whose program is another one today
    python benchmarks/results.py --restamp COMMIT         # those of them that compute what that of COMMIT computed

A pair is trained on its seeds, from 0 on, with a preset of its script, evaluated 20 times while it trains (32 whole
episodes for each seed, 10 on MuJoCo) and at the end over 100 whole episodes for each seed. A training run that was
stopped is continued, and one that has ended is not repeated: remove its folder, `runs/<script>/<env>/results`, to train
it afresh.
The raw file `results/raw/<script>-<env>.json` has the commands, every seed's curve and final score, and the machine.
Folder and file of a preset with a name end in `-<name>`, those of a changed setting in `-<field>-<value>`.
"""

import argparse
from pathlib import Path

from pages import pages
from pictures import draw
from restamp import find_stale, restamp_all
from rows import RAW, read_raws
from tables import ROOT, dump, read
from training import pairs_to_train, show, train


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="pairs such as dqn/Acrobot-v1, trained again")
    parser.add_argument("--gpu", action="store_true", help="train the pairs of GPU size instead of the others")
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--stale", action="store_true", help="list the rows whose program is another one today")
    parser.add_argument("--restamp", metavar="COMMIT", help="renew the program of stale rows that compute the same")
    parser.add_argument("--out", type=Path, default=ROOT / "runs", help="folder of the training runs")
    arguments = parser.parse_args()
    try:
        pairs = pairs_to_train(arguments.only, arguments.gpu)
    except ValueError as error:
        parser.error(str(error))
    if arguments.stale:
        print(*find_stale(read_raws()), sep="\n")
        return
    if arguments.restamp:
        restamp_all(arguments.restamp, arguments.only)
    RAW.mkdir(parents=True, exist_ok=True)
    for pair in pairs if not (arguments.report or arguments.restamp) else ():
        recorded = read(pair.path) if pair.path.exists() else None
        raw = train(pair, arguments.out.resolve())
        pair.path.write_text(dump(raw))
        show(pair, raw, recorded)
    raws = read_raws()
    for page, text in pages(raws).items():
        page.write_text(text)
    draw(raws)


if __name__ == "__main__":
    main()
