"""Hooks: what happens between steps."""

from mmairl.hooks.epoch_bn import EpochBatchNormHook
from mmairl.hooks.momentum import MomentumHook
from mmairl.hooks.online_knn import OnlineKNNHook
from mmairl.hooks.precise_bn import PreciseBNHook
from mmairl.hooks.preflight import PreflightHook
from mmairl.hooks.probe import OnlineProbeHook
from mmairl.hooks.progress import ProgressHook
from mmairl.hooks.queue import QueueHook
from mmairl.hooks.unreadable import UnreadableHook

__all__ = [
    'EpochBatchNormHook',
    'MomentumHook',
    'OnlineKNNHook',
    'OnlineProbeHook',
    'PreciseBNHook',
    'PreflightHook',
    'ProgressHook',
    'QueueHook',
    'UnreadableHook',
]
