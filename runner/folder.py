"""An earlier name, for one version."""

raise ImportError("runner.folder is runner.files now; a trained policy is loaded by `from runner import load`")
