"""The one exception that means: the user can mend this, and the sentence says how."""


class UserError(ValueError):
    """What is wrong, where, and what to do, in one sentence; command lines print it without a traceback."""
