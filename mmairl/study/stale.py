"""Detect stale runs: finished runs whose checkpoint, data or settings have changed since their scores were measured."""

from pathlib import Path

from mmairl.checkpoints.read import read_backbone
from mmairl.errors import UserError
from mmairl.evaluation.backbone import tensors_of_config
from mmairl.evaluation.identity import UNKNOWN, difference, identity_of, is_verified
from mmairl.evaluation.overlap import file_stat
from mmairl.study.measure import sha256, task_settings
from mmairl.study.model_identity import model_at
from mmairl.study.reuse import known_data, origin
from mmairl.study.schema import Asked, RunResult
from mmairl.study.task_names import is_local


def stale_reason(folder: Path, result: RunResult, asked: Asked) -> str:
    """Return the reason why a finished run is stale, such as a changed checkpoint.

    The reason is '' if nothing has changed, or if the inputs of the run are no longer available. A run is stale if the source
    code of a task's protocol has changed. A new version of a package alone does not make a run stale, because the study page
    shows the versions of each run.
    """
    if changed := difference(result.made, origin(asked, folder)):
        return f'weights: {changed}'
    checkpoint = folder / result.checkpoint
    if not asked.untrained:
        if not checkpoint.is_file():
            return ''
        try:
            if _is_replaced(checkpoint, result):
                return 'checkpoint'
        except UserError as error:
            return f'checkpoint ({UNKNOWN}{error})'
    return _changed_trials(result, asked) or _changed_settings(folder, result, asked, checkpoint)


def _is_replaced(checkpoint: Path, result: RunResult) -> bool:
    if result.file == file_stat(checkpoint):
        return False
    if not result.weights:  # Results of earlier versions contain only the digest of the file.
        return sha256(checkpoint) != result.sha256
    return model_at(checkpoint).weights != result.weights


def _changed_trials(result: RunResult, asked: Asked) -> str:
    """Return a text about the first mmdet or mmseg task whose recipe was tuned by other trials than the study requests now.

    The text is '' if there is no such task.
    """
    for task in asked.tasks:
        if is_local(task) or task not in result.labels:
            continue
        measured = result.tuned.get(task, {}).get('trials', [])
        if measured != list(asked.tuned.get(task, ())):
            return f'{task}: its trials'
    return ''


def _changed_settings(folder: Path, result: RunResult, asked: Asked, checkpoint: Path) -> str:
    """Return a text about the first task whose identity has changed, with the part that changed.

    The identity of a task is everything that its score depends on. The text is '' if no identity has changed.
    """
    weights = asked.untrained
    for task in filter(is_local, result.scores):
        cfg, settings = task_settings(task, folder, asked)
        if weights is None:
            try:
                weights = read_backbone(str(checkpoint), network=tensors_of_config(cfg))
            except UserError as error:
                return f'checkpoint ({UNKNOWN}{error})'
        current = identity_of(cfg, settings, weights, result.made, known_data)
        if changed := difference(result.identities.get(task, {}), current, ignored=['code']):
            return f'{task}: {changed}'
    return ''


def unverified(result: RunResult, asked: Asked) -> list[str]:
    """Return the parts of a result ('training' or a task) whose source code an earlier version did not record."""
    parts = [task for task, identity in result.identities.items() if not is_verified(identity)]
    if asked.sources and result.sources is None:
        parts.insert(0, 'training')
    return parts
