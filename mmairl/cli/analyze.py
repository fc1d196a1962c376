"""The command `mmairl analyze`."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mmairl.cli.command import Options, Part, Positive
from mmairl.errors import UserError

if TYPE_CHECKING:
    from mmengine import Config


def analyze(
    instrument: Literal['norms', 'cka', 'geometry', 'patches'],
    checkpoints: list[str],
    *,
    config: str | None = None,
    part: Part = 'student',
    out: Path = Path('work_dirs/analysis'),
    recalibrate: bool = False,
    images: Positive | None = None,
    size: Positive = 448,
    cfg_options: Options = {},  # noqa: B006  it is never changed
) -> None:
    """Compare the representations of checkpoints

    norms     plot the weight norms of each checkpoint (Fig. 3a of Huang et al. 2022); requires no images
    cka       compare the first checkpoint with each other one, or student with teacher, stage by stage (Fig. 3b)
    geometry  measure RankMe, uniformity, alignment, spectrum and invariances, without using labels
    patches   draw the features of test images: principal components as colors, and the attention of a ViT

    Args:
        instrument: choose one of the analyses above
        checkpoints: analyze these checkpoints in any known format, or released models such as torchvision:resnet50
        config: use the images, mean and std of this config; required except for norms (default: none)
        part: choose the network in the checkpoints
        out: write pages, figures and numbers to this folder
        recalibrate: recompute batch norm statistics, which is required after `mmairl normrescale` (default: off)
        images: use at most N images (default: 5000; patches: 8)
        size: patches: resize images to N pixels and crop the central square
        cfg_options: override config keys, such as evaluation.test.root=data/test (default: none)
    """
    # These imports come after the parsing of arguments, because importing torch and OpenMMLab takes seconds.
    from mmairl.report import analysis_pages

    subjects = {name: (path, part) for name, path in named(checkpoints).items()}
    if instrument == 'norms':
        from mmairl.checkpoints.read import read_backbone

        networks = {name: read_backbone(*subject) for name, subject in subjects.items()}
        print(analysis_pages.norms_page(networks, out))
        return
    if not config:
        raise UserError(
            f'{instrument}: requires images; give --config, such as the config of the pre-training',
            code='no-images',
        )
    from mmairl.analysis.subjects import Images
    from mmairl.config import load_config
    from mmairl.engine.run import register
    from mmairl.evaluation.protocol import default_device

    register()
    cfg = load_config(config, cfg_options)
    if instrument == 'patches':
        print(draw_patches(subjects, cfg, images or 8, size, out / 'patches.png'))
        return
    shown = Images(cfg, images or 5000, device=default_device())
    if instrument == 'geometry':
        print(analysis_pages.geometry_page(subjects, shown, recalibrate, out, seed=0))
        return
    if len(subjects) == 1:
        subjects = {part: (checkpoints[0], part) for part in ('student', 'teacher')}
    print(analysis_pages.cka_page(subjects, shown, recalibrate, out))


def draw_patches(subjects: dict, cfg: 'Config', images: int, size: int, out: Path) -> Path:
    """Draw the features of patches, and return the path of the picture."""
    from mmairl.analysis.patch_pictures import patch_picture
    from mmairl.analysis.subjects import Images
    from mmairl.evaluation.backbone import load_backbone
    from mmairl.io import replacing

    backbones = {name: load_backbone(cfg, *subject) for name, subject in subjects.items()}
    cfg.preprocessing = dict(size=size, resize=size)
    shown = Images(cfg, images).first(images)
    with replacing(out) as temporary:
        patch_picture(backbones, shown, cfg).save(temporary, 'PNG')
    return out


def named(paths: list[str]) -> dict[str, str]:
    """Return a dictionary of the paths. The keys are file names if these are unique, otherwise the paths."""
    names = [Path(path).stem for path in paths]
    if len(set(names)) < len(names):
        names = paths
    return dict(zip(names, paths))
