"""Write model cards for converted weights: Markdown files with metadata that model hubs read."""

from pathlib import Path
from typing import Any

import yaml

from mmairl.checkpoints.read import Backbone
from mmairl.checkpoints.released import hub_repository, is_hub, is_released
from mmairl.errors import UserError
from mmairl.evaluation.identity import difference, weights_identity
from mmairl.evaluation.protocol import watched_test_images
from mmairl.io import read_text, write_text
from mmairl.report.evaluation_page import Record, records_in
from mmairl.report.page import MARKDOWN, fill

# A checkpoint of mmairl stores the settings of its run. Settings with these prefixes describe the training data and the recipe.
DATA = ('train_dataloader.dataset.',)
RECIPE = (
    'model.type',
    'model.target',
    'model.symmetric',
    'model.head.',
    'model.queue.length',
    'total_batch_size',
    'optim_wrapper.optimizer.',
    'train_cfg.max_',
    'default_hooks.momentum.',
    'randomness.seed',
)
SIGNATURE = '\n`{}` is the '  # the start of a card's line about its file of weights


def write_card(backbone: Backbone, weights: str | Path, to: str, license: str = '') -> Path:
    """Write a model card next to a file of weights.

    The card is README.md. If README.md exists and describes another file, the card is FILE.md instead, where FILE is the
    name of the file of weights. An earlier card of the same weights is replaced. Users publish the card, so it contains
    only the last part of each path.

    Args:
        backbone: The converted backbone.
        weights: The path of the file of weights.
        to: The format of the file of weights, such as 'timm'.
        license: Identifier of the license, such as 'apache-2.0'.

    Returns:
        The path of the card.

    Raises:
        UserError: If both README.md and FILE.md exist and are not cards of these weights.
    """
    weights = Path(weights)
    path = _free_path(weights)
    network = _network_of(backbone)
    records = _records_of(backbone)
    measured = [
        (name, value, record.data) for record in records for name, value in record.scores.items()
    ]
    name = weights.parent.name if to == 'hub' else weights.stem
    text = fill(
        'card.md',
        front=_front_matter(backbone, name, to, license, records),
        escape=lambda value: str(value).translate(str.maketrans(MARKDOWN)),
        code=lambda value: str(value).replace('`', "'"),
        name=name,
        file=weights.name,
        source=Path(backbone.path).name,
        to=to,
        backbone=backbone,
        network=network,
        input=backbone.input,
        channels=network.get('in_channels', backbone.input.channels or 3),
        parameters=sum(
            value.numel() for key, value in backbone.weights.items() if 'running_' not in key
        ),
        data=_settings(backbone.settings, DATA),
        recipe=_settings(backbone.settings, RECIPE),
        measured=measured,
        watched=watched_test_images(backbone.settings),
    )
    return write_text(path, text)


def _front_matter(
    backbone: Backbone, name: str, to: str, license: str, records: list[Record]
) -> str:
    """Return the metadata that model hubs read, as YAML."""
    fields: dict[str, Any] = dict(
        library_name='pytorch' if to == 'safetensors' else 'timm',
        pipeline_tag='image-feature-extraction',
    )
    if backbone.settings.get('model.type') == 'Siamese':
        fields['tags'] = ['self-supervised-learning', 'mmairl']
    if license:
        fields['license'] = license
    start = backbone.settings.get('model.backbone.init_cfg.checkpoint', backbone.path)
    if is_hub(start):
        fields['base_model'] = hub_repository(start).partition('@')[0]
    results = []
    for record in records:
        metrics = [
            dict(type='accuracy', name=score, value=value) for score, value in record.scores.items()
        ]
        results.append(
            dict(
                task=dict(type='image-classification', name=record.protocol),
                dataset=dict(type=record.data, name=record.data),
                metrics=metrics,
            )
        )
    if results:
        fields['model-index'] = [dict(name=name, results=results)]
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)


def _free_path(weights: Path) -> Path:
    names = ('README.md', f'{weights.name}.md')
    signature = SIGNATURE.format(weights.name)
    for path in map(weights.with_name, names):
        if not path.exists() or signature in read_text(path):
            return path
    raise UserError(
        f'{path}: the file exists and is not the model card of {weights.name}; move this file, or rename the file of the '
        'weights',
        code='card-name-taken',
    )


def _network_of(backbone: Backbone) -> dict[str, Any]:
    try:
        return backbone.network
    except UserError:  # mmairl cannot build this architecture
        return {}


def _records_of(backbone: Backbone) -> list[Record]:
    """Return the results in the folder of the checkpoint that were measured with exactly these weights."""
    if is_released(backbone.path):
        return []
    own = dict(weights=weights_identity(backbone.weights))
    records = records_in(Path(backbone.path).parent)
    return [record for record in records if not difference(dict(weights=record.weights), own)]


def _settings(settings: dict[str, str], prefixes: tuple[str, ...]) -> dict[str, str]:
    """Return the settings whose keys start with one of the prefixes. Paths are cut to their last part."""
    selected = {}
    for key, value in settings.items():
        if key.startswith(prefixes):
            is_path = key.endswith('root') or Path(str(value)).is_absolute()
            selected[key] = Path(value).name if is_path else value
    return selected
