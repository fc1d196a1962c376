"""BYOL's BN momentum for fine-tuning on small sets: statistics that remember about a tenth of an epoch."""

from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn

from mmairl.registry import HOOKS


@HOOKS.register_module()
class EpochBatchNormHook(Hook):
    """Sets every BN layer's decay to max(1 - 10 / s, 0.9), with s steps an epoch; torch's momentum is one minus that."""

    def before_train(self, runner: Runner) -> None:
        momentum = min(10 / len(runner.train_dataloader), 0.1)
        for module in runner.model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.momentum = momentum
