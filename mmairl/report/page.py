"""Write pages from jinja2 templates. A page is one HTML file without scripts that contains its stylesheet and pictures."""

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mmairl.io import write_text

TEMPLATES = Path(__file__).with_name('templates')
STYLE = (TEMPLATES / 'style.css').read_text('utf-8')
# Values in HTML templates are escaped automatically. `Table` escapes the cells of Markdown and LaTeX.
ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=lambda name: name.endswith('.html'),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
# The content security policy of a page allows this stylesheet and embedded pictures, and nothing else: neither scripts nor
# requests. Text on the page can therefore never run as code.
ENVIRONMENT.globals['style'] = Markup(STYLE)
ENVIRONMENT.globals['digest'] = b64encode(sha256(STYLE.encode()).digest()).decode()
# The characters to escape in Markdown and LaTeX, for `str.translate`.
SIGNS = yaml.safe_load((TEMPLATES / 'signs.yaml').read_text('utf-8'))
MARKDOWN = str.maketrans(SIGNS['markdown'])
LATEX = str.maketrans(SIGNS['latex'])


def fill(template: str, **values: object) -> str:
    """Fill in a template and return the text. HTML is returned as Markup, so that another template does not escape it again."""
    text = ENVIRONMENT.get_template(template).render(**values)
    return Markup(text) if template.endswith('.html') else text


def macro(template: str, name: str, *values: object) -> Markup:
    """Call a macro of an HTML template and return its output."""
    return getattr(ENVIRONMENT.get_template(template).module, name)(*values)


def write_page(path: str | Path, template: str = 'page.html', **values: object) -> Path:
    """Fill in a template that extends page.html, and write the page atomically. The value `title` is required."""
    return write_text(path, fill(template, **values))


class Page:
    """A page that consists of sections, one below the other.

    Args:
        title: The title, which is also the heading.
        lead: The first line, which answers the reader's question.

    Example:
        >>> page = Page('A run', lead='Final k-NN accuracy: 71 %.').add('Loss', 'It should fall.', Markup('<svg></svg>'))
        >>> page.write('report.html')  # doctest: +SKIP
    """

    def __init__(self, title: str, lead: str = '') -> None:
        self.title = title
        self.lead = lead
        self.sections: list[Markup] = []

    def add(
        self,
        heading: str,
        text: str = '',
        figure: str | Sequence[str] = '',
        caption: str = '',
        folded: bool = False,
    ) -> 'Page':
        """Append a section to the page. An argument that is not Markup is treated as plain text and escaped.

        Args:
            heading: The heading.
            text: One or two sentences below the heading.
            figure: A figure or table, or several figures to show side by side.
            caption: The caption of the figure.
            folded: Whether the reader has to open the section, of which only the heading and the text are visible.

        Returns:
            This page, so that calls can be chained.
        """
        section = macro('sections.html', 'section', heading, text, figure, caption, folded)
        self.sections.append(section)
        return self

    def write(self, path: str | Path) -> Path:
        return write_page(path, title=self.title, lead=self.lead, sections=self.sections)
