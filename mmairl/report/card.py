"""The model card beside converted weights, in the form that model hubs read: what it is, how it was made, what was measured."""

from pathlib import Path

from mmairl.checkpoints.load import is_released
from mmairl.checkpoints.read import Backbone
from mmairl.errors import UserError
from mmairl.evaluation.identity import difference, weights_identity
from mmairl.io import read_text, write_text
from mmairl.report.evaluation_page import records_in
from mmairl.report.page import fill

# The settings that a checkpoint of ours keeps, by how they begin, that say what its network has learnt from and how.
DATA = ('train_dataloader.dataset.',)
RECIPE = (
    'model.type', 'model.target', 'model.symmetric', 'model.head.', 'model.queue.length', 'total_batch_size',
    'optim_wrapper.optimizer.', 'train_cfg.max_', 'default_hooks.momentum.', 'randomness.seed',
)  # fmt: skip
OWN = '\n`{}` is the '  # how a card tells whose it is


def write_card(backbone: Backbone, weights: str | Path, to: str) -> Path:
    """Write README.md beside the file of weights, or, where another has that name, one by the name of the file.

    An earlier card of the same file is replaced, and nothing else. Of a folder it tells the name alone, for a card is
    published.
    """
    weights = Path(weights)
    names = (weights.with_name('README.md'), weights.with_name(f'{weights.name}.md'))
    free = [path for path in names if not path.exists() or OWN.format(weights.name) in read_text(path)]
    if not free:
        raise UserError(f'{names[1]} is not the card of {weights.name}; move it, or give the weights another name')
    try:
        network = backbone.network
    except UserError:  # of another kind
        network = {}
    trained = backbone.input
    own = weights_identity(backbone.weights)
    records = [] if is_released(backbone.path) else records_in(Path(backbone.path).parent)
    measured = [record for record in records if not difference(dict(weights=record.weights), dict(weights=own))]
    text = fill(
        'card.md',
        name=weights.stem,
        file=weights.name,
        source=Path(backbone.path).name,
        to=to,
        backbone=backbone,
        network=network,
        input=trained,
        channels=network.get('in_channels', trained.channels or 3),
        parameters=sum(value.numel() for key, value in backbone.weights.items() if 'running_' not in key),
        data=beginning(backbone.settings, DATA),
        recipe=beginning(backbone.settings, RECIPE),
        measured=[(name, value, record.data) for record in measured for name, value in record.scores.items()],
    )
    return write_text(free[0], text)


def beginning(settings: dict[str, str], names: tuple[str, ...]) -> dict[str, str]:
    own = {key: value for key, value in settings.items() if key.startswith(names)}
    return {key: Path(value).name if key.endswith('root') else value for key, value in own.items()}
