"""The command `mmairl report`, whose pages have a function each."""

from pathlib import Path

from mmairl.cli.command import Count, Options, Part, Positive, Seed
from mmairl.errors import UserError

# The functions below import modules after the parsing of arguments, because importing torch and OpenMMLab takes seconds.


def report(
    folders: list[str],
    *,
    out: str = 'work_dirs/report',
) -> None:
    """Write a page about results, a study, the health of a run, several runs, views, or images

    mmairl report FOLDER...               a page about the results of `mmairl evaluate`
    mmairl report study DIR               the page of a study
    mmairl report health RUN              the health of a run
    mmairl report compare RUN RUN...      a comparison of runs
    mmairl report views CONFIG            training images and their views
    mmairl report map CKPT --images DIR   a map of images

    Args:
        folders: read the results in these folders
        out: write the page to this folder
    """
    from mmairl.report.evaluation_page import records_in, write_evaluation_page

    if not records_in(*folders):
        raise UserError(
            f'{", ".join(folders)}: no results; run `mmairl evaluate` first',
            code='no-results',
        )
    print(write_evaluation_page(out, folders))


def study(folder: Path) -> None:
    """Write the page, the tables and the charts of a finished study again

    Args:
        folder: read study.json in this folder, which `mmairl study` wrote
    """
    from mmairl.io import read_json
    from mmairl.study.page import write_results

    print(write_results(read_json(folder / 'study.json'), folder))


def health(work_dir: Path, *, out: Path | None = None) -> None:
    """Write the health page of a run

    Args:
        work_dir: read the work dir of a training run that used a HealthHook
        out: write this page (default: WORK_DIR/health.html)
    """
    from mmairl.report.health_page import write_health_page

    print(write_health_page(work_dir, out or work_dir / 'health.html'))


def compare(runs: list[str], *, out: str = 'work_dirs/compare.html') -> None:
    """Write a page that compares training runs

    Args:
        runs: read the work dirs of two or more training runs
        out: write this page
    """
    from mmairl.report.compare_page import write_compare_page

    print(write_compare_page(runs, out))


def views(
    config: str,
    *,
    root: str | None = None,
    seed: Seed = 0,
    out: str | None = None,
    cfg_options: Options = {},  # noqa: B006  it is never changed
) -> None:
    """Write a page with some training images and their views, so that you can check the views before a run

    Args:
        config: use this pre-training config, such as configs/mocov2plus_r18_folder_100e.py
        root: read images here (default: train_dataloader.dataset.root)
        seed: set the seed for the choice of images and for their views (default: 0)
        out: write this page (default: work_dirs/views/CONFIG.html)
        cfg_options: override config keys, such as train_dataloader.dataset.root=images (default: none)
    """
    from mmairl.config import load_config
    from mmairl.engine.checks import check_config
    from mmairl.engine.run import register
    from mmairl.io import output
    from mmairl.report.views_page import write_views_page

    register()
    options = {'train_dataloader.dataset.root': root} if root else {}
    cfg = load_config(config, {**options, **cfg_options})
    check_config(cfg)
    page = output(out or f'work_dirs/views/{Path(config).stem}.html', config)
    print(write_views_page(cfg, page, seed))


def image_map(
    checkpoint: str,
    *,
    images: list[str],
    part: Part = 'student',
    config: str | None = None,
    size: Positive | None = None,
    workers: Count = 0,
    seed: Seed = 0,
    out: Path | None = None,
) -> None:
    """Write a page with a map of images, on which similar images are near each other

    Args:
        checkpoint: compute features with this checkpoint in any known format
        images: map these images, the images in these folders (with or without classes), or an archive
        part: choose the network in the checkpoint
        config: build the network of this config; required for networks other than ResNets and ViTs (default: detect it)
        size: set the side of the center crop (default: as in training if the checkpoint states it, else 224)
        workers: load images in N processes (default: 0)
        seed: set the seed of the map and of the groups (default: 0)
        out: write this page (default: map.html next to the checkpoint)
    """
    from mmairl.io import output
    from mmairl.report.map_page import map_images

    out = out or Path(checkpoint).with_name('map.html')
    output(out, checkpoint, config, *images)
    settings = dict(part=part, config=config, size=size, workers=workers)
    source = images[0] if len(images) == 1 else images
    print(map_images(checkpoint, source, out, seed=seed, **settings))


PAGES = dict(study=study, health=health, compare=compare, views=views, map=image_map)
