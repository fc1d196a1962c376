"""For the site's API page: the examples of docstrings, which begin with >>>, as blocks of code."""

import re

import griffe

EXAMPLE = re.compile(r'^>>> .*(?:\n(?!\n)\S.*|\n {1,}\S.*)*', re.MULTILINE)


class Doctests(griffe.Extension):
    """Fences each example before the docstring is read as Markdown, where [0]['inputs'] would be a link."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(lambda found: f'```pycon\n{found[0]}\n```', obj.docstring.value)
