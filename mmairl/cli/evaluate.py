"""The command `mmairl evaluate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mmairl.cli.command import Count, Launcher, Options, Part, Positive, Seed
from mmairl.errors import UserError

if TYPE_CHECKING:
    from mmengine import Config

    from mmairl.evaluation.protocol import Result


def evaluate(
    protocol: str,
    config: str,
    checkpoint: str | None = None,
    *,
    data: str | None = None,
    init: Literal['pixels', 'random'] | None = None,
    part: Part = 'student',
    k: list[Positive] | None = None,
    recipe: str | None = None,
    seed: Seed | None = None,
    settings: Options = {},  # noqa: B006  it is never changed
    out: Path | None = None,
    cache: str = 'work_dirs/features',
    workers: Count | None = None,
    launcher: Launcher | None = None,
    cfg_options: Options = {},  # noqa: B006  it is never changed
) -> None:
    """Score a checkpoint, such as by k-NN or a linear classifier

    mmairl evaluate knn CONFIG CKPT      on the images that a config names
    mmairl evaluate knn CKPT --data DIR  on labeled images in DIR/train/CLASS/ and DIR/test/CLASS/, or in DIR/CLASS/

    CKPT has any known format, or is a released model such as torchvision:resnet50. --init evaluates a baseline instead.

    Args:
        protocol: choose knn, logreg, svm, linear, finetune, segment, depth_probe, retrieval, uniformity, norms or your own
        config: use the model and the data sets of this config; with --data, required for networks other than ResNets and ViTs
        checkpoint: evaluate this checkpoint; required without --init
        data: evaluate on the labeled images in this folder (default: those of the config)
        init: evaluate random weights or raw pixels as a baseline, instead of a checkpoint (default: none)
        part: choose the network in the checkpoint
        k: knn: set one or more numbers of neighbors (default: the config's, or 20 200; at most the number
            of training images)
        recipe: linear, finetune: use this recipe of configs/_base_/recipes or this file (default: that of the config)
        seed: set the random seed of a protocol that trains (default: 0)
        settings: set other settings of the protocol by name, such as temperature=0.1 (default: none)
        out: write the scores to this JSON file (default: next to the checkpoint, or else in work_dirs/CONFIG)
        cache: store features in this folder; none stores nothing
        workers: load images in N processes (default: up to 8 with a GPU, else 0)
        launcher: set the launcher that started the processes (default: none)
        cfg_options: override config keys, such as evaluation.test.root=data/test (default: none)
    """
    if data and not checkpoint:
        config, checkpoint = None, config
    if bool(checkpoint) == bool(init):
        raise UserError(
            'evaluate: expected a checkpoint, --init random or --init pixels; give exactly one of them',
            code='subject',
        )
    # These imports come after the parsing of arguments, because importing torch and OpenMMLab takes seconds.
    from mmairl.engine.run import register
    from mmairl.evaluation import protocol as protocols
    from mmairl.io import output
    from mmairl.signals import stop_processes

    register()
    cfg = evaluated_config(config, checkpoint, data, cfg_options)
    name = Path(data or config).stem
    out = output(out or default_out(protocol, name, checkpoint, init, part), checkpoint, config)
    chosen = dict(
        work_dir=out.with_suffix(''),
        device=protocols.default_device(),
        workers=protocols.default_workers() if workers is None else workers,
        cache=None if cache == 'none' else Path(cache),
        launcher=launcher,
        ks=k,
        recipe=recipe,
        seed=seed,
    )
    setting = protocols.settings_for(protocol, cfg, **(chosen | settings))
    results = [protocols.evaluate(cfg, protocol, init or checkpoint, part, setting)]
    # On few images, only a comparison shows what the checkpoint has learned.
    if data and 'random' in setting.null_rows:
        results.append(protocols.evaluate(cfg, protocol, 'random', part, setting))
    record = dict(protocol=protocol, config=data or config, checkpoint=checkpoint, part=part)
    write_result(results, record, name, out)
    stop_processes()


def evaluated_config(
    config: str | None, checkpoint: str | None, data: str | None, options: dict
) -> 'Config':
    """Return the config that defines the network and the images."""
    from mmairl.apis.evaluate import labeled_config
    from mmairl.checkpoints.released import is_hub
    from mmairl.config import load_config

    # For a model of a hub, the config only defines the images.
    if data or is_hub(checkpoint or ''):
        return labeled_config(checkpoint, data or config, config if data else None, options)
    return load_config(config, options)


def default_out(
    protocol: str, name: str, checkpoint: str | None, init: str | None, part: str
) -> Path:
    """Return CKPT_PART_PROTOCOL_NAME.json next to the checkpoint. NAME is the name of the config or of the folder of images.

    A baseline or a released model has no folder, so its path is work_dirs/NAME/MODEL_PROTOCOL.json.
    """
    subject = init or checkpoint
    path = Path(subject)
    if path.is_file():
        return path.with_name(f'{path.stem}_{part}_{protocol}_{name}.json')
    model = subject.replace(':', '_').replace('/', '_')
    return Path('work_dirs') / name / f'{model}_{protocol}.json'


def write_result(shown: list['Result'], record: dict[str, Any], name: str, out: Path) -> None:
    """Print the scores, then write each result to a file. They are printed first, because writing can fail."""
    import dataclasses

    from mmengine.dist import is_main_process

    from mmairl.io import write_json
    from mmairl.report.evaluation_page import results_table, write_evaluation_page

    if not is_main_process():
        return
    print(results_table(shown).text(f'in percent, {name}'))
    for number, result in enumerate(shown):
        file = out.with_stem(f'{out.stem}_random') if number else out
        write_json(file, {**record, **dataclasses.asdict(result)})
    print(
        f'the scores are in {out}, and the page of this folder is {write_evaluation_page(out.parent)}'
    )
