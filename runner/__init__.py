"""The command line of the scripts, which import nothing of it but `run`, in their last lines; a copy needs none of it.

Layers, from the lowest up; a module imports from its own layer and from those before it:
    errors       one line on stderr, and the status with which a command exits
    options/     the options of a run, their command line, sweeps
    experiment   the trials of a run, their parts, progress and results
    devices/     trials on devices, compiled programs, memory, hosts, evaluation, signals
    files/       the files of a run: lock, record, metrics, checkpoint, and `load`
    report/      progress, statistics, tables and plots of results, wandb
    halving      which settings of a sweep go on, and for how long
    training     a part: segments of training, with evaluation and saving between them
    rungs        the parts of a run, in the rungs of a sweep that is halved
    main         a whole run
    render       an episode as an animation
    evaluate     the scores of a policy, also in another environment
    same         whether a copy of a script still is the script
    compare/     runs side by side
    export/      a policy as an ONNX model, and a player of it
"""

from runner.files.load import load  # noqa: F401  # `from runner import load`
