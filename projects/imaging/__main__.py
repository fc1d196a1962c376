"""Run a command of mmairl with the readers of this project: python -m projects.imaging pack scans scans.tar --unlabelled."""

import projects.imaging  # noqa: F401  registers the readers
from mmairl.cli.main import main

main()
