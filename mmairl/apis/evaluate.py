"""Score a checkpoint on labeled images in folders, in Python."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmairl.config import load_config, override
from mmairl.data.splits import HELD_OUT
from mmairl.engine.run import register
from mmairl.evaluation import protocol
from mmairl.evaluation.embed import embedding_network
from mmairl.evaluation.protocol import Result
from mmairl.report.evaluation_page import results_table
from mmairl.report.table import Table

TEST_FOLDERS = ('test', 'val')


@dataclass(frozen=True)
class Evaluation:
    """The scores of a checkpoint and of a random network. A notebook displays them as a table.

    Args:
        results: The result of each protocol for the checkpoint, by name.
        baselines: The result of each protocol for a randomly initialized network, by name.
    """

    results: dict[str, Result]
    baselines: dict[str, Result]

    @property
    def scores(self) -> dict[str, float]:
        """The scores of the checkpoint, by name."""
        found: dict[str, float] = {}
        for result in self.results.values():
            found |= result.scores
        return found

    @property
    def table(self) -> Table:
        return results_table([*self.results.values(), *self.baselines.values()])

    def __str__(self) -> str:
        return self.table.text()

    def _repr_html_(self) -> str:
        return self.table.html()


def evaluate(
    checkpoint: str | Path,
    data: str | Path,
    protocols: Sequence[str] = ('knn', 'logreg'),
    *,
    part: str = 'student',
    config: str | Path | None = None,
    size: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Score a checkpoint on labeled images, and a randomly initialized network for comparison.

    Images are prepared as in `mmairl.embed`.

    Args:
        checkpoint: A checkpoint in any format that mmairl reads.
        data: A folder with train/CLASS and test/CLASS (or val/CLASS), a folder with CLASS, of whose images a fifth becomes
            test images, or a config with a section `evaluation`.
        protocols: Names of evaluation protocols, as in `mmairl evaluate`.
        part: 'student' or 'teacher'.
        config: A config that defines the network, if it is neither a ResNet nor a ViT.
        size: Side of the central crop in pixels. Default: as the checkpoint states, or 224.
        options: Config keys to override, as in `--cfg-options`.

    Returns:
        The scores.

    Raises:
        UserError: If a protocol is unknown, a class has fewer than two images, or the checkpoint does not fit.

    Example:
        >>> print(mmairl.evaluate('runs/a/epoch_100.pth', 'labels/'))  # doctest: +SKIP
    """
    register()
    cfg = labeled_config(checkpoint, data, config, options, part, size)
    results: dict[str, dict[str, Result]] = {str(checkpoint): {}, 'random': {}}
    for subject, found in results.items():
        for name in protocols:
            settings = protocol.settings_for(name, cfg, device=protocol.default_device())
            if subject != 'random' or 'random' in settings.null_rows:
                found[name] = protocol.evaluate(cfg, name, subject, part, settings)
    return Evaluation(*results.values())


def labeled_config(
    checkpoint: str | Path,
    data: str | Path,
    config: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    part: str = 'student',
    size: int | None = None,
) -> Config:
    """Return a config with the network of a checkpoint and labeled images, which are prepared as in `mmairl.embed`.

    If `data` is a config, its images keep the size that it defines.
    """
    cfg, _, steps = embedding_network(checkpoint, part, config, size=size)
    cfg.model.data_preprocessor = dict(type='ViewPreprocessor', mean=steps.mean, std=steps.std)
    cfg.preprocessing = steps  # the random network gets the same images
    if Path(data).suffix in ('.py', '.yaml', '.json'):
        labeled = load_config(data)
        cfg.evaluation = labeled.evaluation
        if 'recipes' in labeled:
            cfg.recipes = labeled.recipes
        cfg.preprocessing.update(labeled.get('preprocessing', {}))
    else:
        # The published learning rates of linear evaluation diverge on small sets, so it is chosen.
        cfg.evaluation = {**class_folders(Path(data)), 'batch_size': 64, 'sweep': True}
        cfg.recipes = dict(linear='linear_folder_20e')
    override(cfg, options or {}, str(data))
    return cfg


def class_folders(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the configs of the training and test images in a folder."""
    for test in TEST_FOLDERS:
        if (folder / test).is_dir():
            parts = dict(train=folder / 'train', test=folder / test)
            return {part: dict(type='ImageFolder', root=str(path)) for part, path in parts.items()}
    images = dict(type='ImageFolder', root=str(folder))
    whole = dict(type='Part', dataset=images, fraction=HELD_OUT)
    return {'train': {**whole, 'held': False}, 'test': {**whole, 'held': True}}
