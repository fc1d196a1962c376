"""Further analyses of a study, from modules that the study lists under `analyses`.

A row of a study is one configuration, usually trained with several seeds.

A module registers its analysis when it is imported::

    ANALYSES[__name__] = Analysis('benefit', record, section)
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module  # noqa: TID251  a study may execute code, like the configs that it names
from typing import Any, NamedTuple

from markupsafe import Markup

from mmairl.config import home
from mmairl.errors import UserError


class Analysis(NamedTuple):
    """An analysis of a study's runs, which adds a result to study.json and a section to the study page.

    Args:
        key: The key of the result in study.json.
        record: A function that computes the result. It gets the study, the config of each row by name, and the runs.
        section: A function that returns the HTML of the section. It gets the content of study.json.
    """

    key: str
    record: Callable[[Any, Mapping[str, Any], Sequence[Any]], Any]
    section: Callable[[Mapping[str, Any]], Markup]


ANALYSES: dict[str, Analysis] = {}  # the analysis of each imported module, by the module's name


def load_analyses(names: Sequence[str]) -> None:
    """Import the modules of a study's `analyses`, which register their analyses.

    Raises:
        UserError: If a module does not exist or registers no analysis.
    """
    if names and str(home()) not in sys.path:
        sys.path.append(str(home()))
    for name in names:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if not f'{name}.'.startswith(f'{error.name}.'):
                raise
            raise UserError(
                f"analyses: module does not exist ('{name}'); correct the name, or use a checkout of the repository if the "
                'module is in projects/',
                code='no-analysis-module',
            ) from None
        if name not in ANALYSES:
            raise UserError(
                f"analyses: the module registers no analysis ('{name}'); add one to mmairl.study.analyses.ANALYSES",
                code='no-analysis',
            )


def analysis_records(study: Any, configs: Mapping[str, Any], runs: Sequence[Any]) -> dict[str, Any]:
    """Compute the study's analyses, and return their results by their keys in study.json."""
    analyses = [ANALYSES[name] for name in study.analyses]
    return {analysis.key: analysis.record(study, configs, runs) for analysis in analyses}


def analysis_sections(study: Mapping[str, Any]) -> list[Markup]:
    """Return the study page's sections for the analyses whose results are in study.json.

    The modules that study.json names are not imported, because study.json may come from an untrusted source. The section of
    an analysis is left out if this process has not loaded the analysis.
    """
    known = [ANALYSES[name] for name in study.get('analyses', ()) if name in ANALYSES]
    return [analysis.section(study) for analysis in known if study.get(analysis.key)]
