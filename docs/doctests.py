"""Extension of griffe that shows the examples in docstrings as code blocks on the site's API page."""

import re

import griffe

# An example begins with >>>. The lines of its result have the same or a deeper indentation.
EXAMPLE = re.compile(r'^( *)>>> .*(?:\n\1 *\S.*)*', re.MULTILINE)


class Doctests(griffe.Extension):
    """Put each example between code fences. Otherwise Markdown would read code such as [0]['inputs'] as a link."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(r'\1```pycon\n\g<0>\n\1```', obj.docstring.value)
