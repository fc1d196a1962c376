"""Views by name for images that are no photographs of things: what may change without changing what is seen, and why."""

from collections.abc import Sequence

from mmairl.errors import UserError, closest

CROP = dict(type='RandomResizedCrop', size=224, scale=(0.2, 1.0))
TURN = dict(type='RandomTurn', p=1.0)
# Behind each method's own crops: a change, and what it stands for.
DOMAINS: dict[str, tuple[tuple[dict, str], ...]] = {
    'satellite': (
        (TURN, 'seen from above nothing is up, so all eight turns and mirrors show the same place'),
        (
            dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.0, hue=0.0),
            'sun and haze change brightness and contrast; colour is measured, and hue tells crops and water apart',
        ),
        (dict(type='GaussianBlur', p=0.2, sigma=(0.1, 1.0)), 'sensors and air differ in sharpness'),
    ),
    'microscopy': (
        (TURN, 'a slide has no up, so all eight turns and mirrors show the same tissue or cells'),
        (dict(type='StainJitter', p=0.8, strength=0.2), 'laboratories stain more or less; which stain it is stays'),
        (
            dict(type='ColorJitter', p=0.5, brightness=0.2, contrast=0.2, saturation=0.0, hue=0.0),
            'lamps and exposures differ; hue is the stain, so it stays',
        ),
        (dict(type='GaussianBlur', p=0.5, sigma=(0.1, 1.5)), 'the focus differs over a slide'),
    ),
    'medical_grey': (
        (
            dict(type='ColorJitter', p=0.8, brightness=0.3, contrast=0.4, saturation=0.0, hue=0.0),
            'windows, exposures and devices differ; there is no colour',
        ),
        (
            dict(type='GaussianBlur', p=0.2, sigma=(0.1, 1.0)),
            'devices differ in sharpness, and small findings must not vanish',
        ),
        # No flip and no turn: patients are laid alike, and left and right are different organs.
    ),
    'documents': (
        (
            dict(type='ColorJitter', p=0.8, brightness=0.3, contrast=0.4, saturation=0.2, hue=0.0),
            'paper yellows, and lamps and scanners differ',
        ),
        (dict(type='RandomGrayscale', p=0.3), 'copies are grey'),
        (dict(type='GaussianBlur', p=0.3, sigma=(0.1, 1.0)), 'scans differ in sharpness, and text must stay readable'),
        # No flip and no turn: mirrored text is none, and pages are read upright.
    ),
}


def reasons(name: str) -> list[tuple[dict, str]]:
    """Return the changes of a list of views, each with what it stands for."""
    if name not in DOMAINS:
        raise UserError(
            f"there are no views '{name}'{closest(name, DOMAINS)}; say one of {', '.join(DOMAINS)}, or give a list"
        )
    return list(DOMAINS[name])


def named_views(name: str, like: Sequence[Sequence[dict]] = ((CROP,), (CROP,))) -> list[list[dict]]:
    """Return the views of this name, as many and with the crops of those that they are to be `like`."""
    crops = [[dict(step) for step in view if step['type'] == 'RandomResizedCrop'] for view in like]
    return [[*crop, *(dict(step) for step, _ in reasons(name))] for crop in crops]
