"""Train the model that a config describes. The command line, the demo, studies and the Python API all call `train`."""

from collections.abc import Sequence

from mmengine.config import Config
from mmengine.hooks import Hook

from mmairl.engine.prepare import register as register
from mmairl.engine.runner import Runner
from mmairl.engine.strategy import strategy_named as strategy_named


def train(cfg: Config, launcher: str = 'none', hooks: Sequence[Hook] = ()) -> Runner:
    """Train the model that a config describes. Most mistakes raise an error before the first step.

    Args:
        cfg: The config. It is changed in place: keys that follow from other keys are set, such as the batch size per process.
        launcher: The program that started the processes: 'none' (a single process), 'pytorch' or 'slurm'.
        hooks: Hooks to register in addition to those of the config.

    Returns:
        The runner after its last step.

    Raises:
        UserError: If the config, the data or the checkpoint to resume from is invalid.
    """
    cfg.launcher = launcher
    runner = Runner.from_cfg(cfg)
    for hook in hooks:
        runner.register_hook(hook)
    runner.train()
    return runner
