"""Hooks: what happens between steps."""

from mmairl.hooks.checkpoint import ExactCheckpointHook
from mmairl.hooks.epoch_bn import EpochBatchNormHook
from mmairl.hooks.health import HealthHook
from mmairl.hooks.momentum import MomentumHook
from mmairl.hooks.nonfinite import NonFiniteHook
from mmairl.hooks.online_knn import OnlineKNNHook
from mmairl.hooks.precise_bn import PreciseBNHook
from mmairl.hooks.preemption import PreemptionHook
from mmairl.hooks.preflight import PreflightHook
from mmairl.hooks.probe import OnlineProbeHook
from mmairl.hooks.progress import ProgressHook
from mmairl.hooks.queue import QueueHook
from mmairl.hooks.runtime_info import AsyncRuntimeInfoHook
from mmairl.hooks.unreadable import UnreadableHook

__all__ = [
    'AsyncRuntimeInfoHook',
    'EpochBatchNormHook',
    'ExactCheckpointHook',
    'HealthHook',
    'MomentumHook',
    'NonFiniteHook',
    'OnlineKNNHook',
    'OnlineProbeHook',
    'PreciseBNHook',
    'PreemptionHook',
    'PreflightHook',
    'ProgressHook',
    'QueueHook',
    'UnreadableHook',
]
