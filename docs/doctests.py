"""Show the examples of docstrings, which begin with >>>, as code blocks on the site's API page."""

import re

import griffe

# An example and the lines of its result, at the same or a deeper indentation.
EXAMPLE = re.compile(r'^( *)>>> .*(?:\n\1 *\S.*)*', re.MULTILINE)


class Doctests(griffe.Extension):
    """Fence each example before the docstring is read as Markdown, in which [0]['inputs'] would be a link."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(r'\1```pycon\n\g<0>\n\1```', obj.docstring.value)
