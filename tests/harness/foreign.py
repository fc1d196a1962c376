"""Foreign objects in checkpoints, which must not be built or run when a file is read."""


class Settings:
    """A foreign class. It counts how often one is built, and how often `run_me` runs."""

    built = 0

    def __init__(self) -> None:
        self.rate = 0.1

    def __setstate__(self, state: dict) -> None:
        Settings.built += 1


def run_me(*_: object) -> None:
    Settings.built += 1


class Runs:
    def __reduce__(self) -> tuple:
        return run_me, (1,)
