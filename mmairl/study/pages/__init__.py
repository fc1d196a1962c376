"""The pages and tables of studies, with their templates."""

from pathlib import Path

from mmairl.report.page import ENVIRONMENT

ENVIRONMENT.loader.searchpath.append(str(Path(__file__).with_name('templates')))
