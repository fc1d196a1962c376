"""One self-contained HTML page of headed sections: it opens from a mail, in light and dark, on a phone, offline."""

from html import escape
from pathlib import Path

from mmairl.files import replacing
from mmairl.report.style import STYLE


class Page:
    """Collects sections and writes them as one file.

    >>> page = Page('A run', lead='What came out of it.').add('Loss', 'It should fall.', '<svg></svg>')
    >>> page.write('report.html')  # doctest: +SKIP
    """

    def __init__(self, title: str, lead: str = '') -> None:
        self.title = title
        self.lead = lead
        self.sections: list[str] = []

    def add(self, heading: str, text: str = '', html: str = '', caption: str = '') -> 'Page':
        """Append a section: a heading, a plain sentence or two, and markup (a figure or table) with its small print."""
        parts = [f'<h2>{escape(heading)}</h2>']
        if text:
            parts.append(f'<p>{escape(text)}</p>')
        if html:
            caption = f'<figcaption>{escape(caption)}</figcaption>' if caption else ''
            parts.append(f'<figure>{html}{caption}</figure>')
        self.sections.append(f'<section>{"".join(parts)}</section>')
        return self

    def html(self) -> str:
        """The whole document."""
        lead = f'<p class="lead">{escape(self.lead)}</p>' if self.lead else ''
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="color-scheme" content="light dark">'
            f'<title>{escape(self.title)}</title><style>\n{STYLE}</style></head>\n'
            f'<body><main><header><h1>{escape(self.title)}</h1>{lead}</header>\n'
            + '\n'.join(self.sections)
            + '\n</main></body></html>\n'
        )

    def write(self, path: str | Path) -> Path:
        """Write the page, whole or not at all, and return where it is."""
        path = Path(path)
        with replacing(path) as beside:
            beside.write_text(self.html(), encoding='utf-8')
        return path
