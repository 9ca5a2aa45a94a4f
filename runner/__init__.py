"""The command line of the scripts, which import nothing of it but `run`, in their last lines; a copy needs none of it.

Rooms, from the ground up; a module imports from its own room and from those before it:
    ask/         the options of a run, their command line, sweeps
    experiment   the lanes of a run, their parts, progress and results
    machine/     devices, compiled programs, memory, hosts, evaluation, signals
    folder/      the files of a run: lock, record, metrics, checkpoint, and `load`
    tell/        progress, statistics, the report with its plots, wandb
    training     segments of training, with evaluation and saving between them
    main         a whole run
    render       an episode as an animation
    compare/     runs side by side
"""
