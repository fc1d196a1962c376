"""Foreign objects in checkpoints. Reading a file must neither create them nor call them."""


class Settings:
    """A foreign class that counts how many instances are created, and how often `run_me` is called."""

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
