"""Pages from jinja2 templates, each one HTML file without external assets: stylesheet, scripts and figures are inlined."""

import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mmairl.io import write_text

HERE = Path(__file__).parent
TEMPLATES = HERE / 'templates'
# Whatever goes into HTML is escaped; tables in Markdown and LaTeX escape by themselves.
ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=lambda name: name.endswith('.html'),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
# On white and on near-black the first six keep apart for the colour-blind too, and of the others those of one shape.
COLOURS = (
    '#2f7fc1', '#e69f00', '#009e73', '#d55e00', '#cc79a7', '#56b4e9',
    '#25a9bd', '#86b84a', '#f0a0c0', '#b03060', '#a6794f', '#8a5a2b',
)  # fmt: skip
MARKDOWN = {'&': '&amp;', '<': '&lt;', '>': '&gt;', **{c: f'\\{c}' for c in '\\|`*_[]$~'}}
LATEX = {
    '\\': r'\textbackslash{}', '~': r'\textasciitilde{}', '^': r'\textasciicircum{}',
    '<': r'\textless{}', '>': r'\textgreater{}', '|': r'\textbar{}', '"': r'\textquotedbl{}', '[': '{[}',
    **{c: f'\\{c}' for c in '&%$#_{}'},
    '—': '---', '–': '--', '−': '$-$', '±': r'$\pm$', '×': r'$\times$', '→': r'$\rightarrow$', '·': r'$\cdot$',
    'Δ': r'$\Delta$',
}  # fmt: skip
# What only some pages need, by what stands on them.
SCRIPTS = {
    'class="curves': ('uplot/LICENSE', 'uplot/uPlot.iife.min.js', 'templates/charts.js'),
    'id="map"': ('templates/map.js',),
}


def fill(template: str, **values: object) -> str:
    """A template, filled in. HTML is marked as such, so that it is not escaped again when it goes into another."""
    text = ENVIRONMENT.get_template(template).render(**values)
    return Markup(text) if template.endswith('.html') else text


def write_page(path: str | Path, template: str = 'page.html', wide: bool = False, **values: object) -> Path:
    """Fill in the template of a page, write it whole or not at all, and return where it is.

    Its policy lets the browser run these scripts and no others, and ask nobody for anything, whatever a name on it says.
    """
    body = fill(template, wide=wide, **values)
    needed = [name for sign, names in SCRIPTS.items() if sign in body for name in names]
    text = {name: (HERE / name).read_text('utf-8') for name in ('templates/page.js', *needed)}
    text = {name: f'/*! {part} */' if name.endswith('LICENSE') else part for name, part in text.items()}
    script, style = '\n'.join(text.values()), (TEMPLATES / 'style.css').read_text('utf-8')
    if 'uplot/LICENSE' in text:
        style = (HERE / 'uplot/uPlot.min.css').read_text('utf-8') + style
    digests = {kind: sha256(part.encode()).digest() for kind, part in (('style', style), ('script', script))}
    allowed = (f"{kind}-src 'sha256-{b64encode(digest).decode()}'" for kind, digest in digests.items())
    policy = '; '.join(("default-src 'none'", 'img-src data:', *allowed, "base-uri 'none'", "form-action 'none'"))
    signs = json.dumps(dict(colours=COLOURS, markdown=MARKDOWN, latex=LATEX))
    own = dict(title=values['title'], policy=policy, signs=signs, style=Markup(style), script=Markup(script))
    return write_text(path, fill('frame.html', body=body, **own))


class Page:
    """A page of headed sections, one under the other.

    >>> page = Page('A run', lead='What came out of it.').add('Loss', 'It should fall.', Markup('<svg></svg>'))
    >>> page.write('report.html')  # doctest: +SKIP
    """

    def __init__(self, title: str, lead: str = '', wide: bool = False) -> None:
        self.title, self.lead, self.wide = title, lead, wide
        self.sections: list[Markup] = []

    def add(self, heading: str, text: str = '', figure: str | Sequence[str] = '', caption: str = '') -> 'Page':
        """Append a section: a heading, a plain sentence or two, and a figure or table, or figures side by side, with a caption.

        Whatever is not Markup is text and is escaped.
        """
        return self.tell('section', heading=heading, text=text, figure=figure, caption=caption)

    def tell(self, name: str, **values: object) -> 'Page':
        """Append the section that templates/sections.html has under this name."""
        self.sections.append(getattr(ENVIRONMENT.get_template('sections.html').module, name)(**values))
        return self

    def write(self, path: str | Path) -> Path:
        return write_page(path, title=self.title, lead=self.lead, wide=self.wide, sections=self.sections)
