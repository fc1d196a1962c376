"""Pages from jinja2 templates, each one HTML file without external assets: stylesheet, script and figures are inlined."""

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mmairl.files import replacing

TEMPLATES = Path(__file__).with_name('templates')
# Whatever goes into HTML is escaped; tables in Markdown and LaTeX escape by themselves.
ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=lambda name: name.endswith('.html'),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
INLINED = {'style': 'style.css', 'script': 'script.js'}


def fill(template: str, **values: object) -> str:
    """A template, filled in. HTML is marked as such, so that it is not escaped again when it goes into another."""
    text = ENVIRONMENT.get_template(template).render(**values)
    return Markup(text) if template.endswith('.html') else text


def write_page(path: str | Path, template: str = 'page.html', **values: object) -> Path:
    """Fill in the template of a page, write it whole or not at all, and return where it is.

    Its policy lets the browser run this script and no other, and ask nobody for anything, whatever a name on it says.
    """
    inlined = {kind: Markup((TEMPLATES / file).read_text('utf-8')) for kind, file in INLINED.items()}
    digests = {kind: b64encode(sha256(text.encode()).digest()).decode() for kind, text in inlined.items()}
    allowed = (f"{kind}-src 'sha256-{digest}'" for kind, digest in digests.items())
    policy = '; '.join(("default-src 'none'", 'img-src data:', *allowed, "base-uri 'none'", "form-action 'none'"))
    with replacing(path) as beside:  # piece by piece: a page may be as large as all the images on it
        page = ENVIRONMENT.get_template(template).stream(policy=policy, **inlined, **values)
        page.dump(str(beside), encoding='utf-8')
    return Path(path)


class Page:
    """A page of headed sections, one under the other.

    >>> page = Page('A run', lead='What came out of it.').add('Loss', 'It should fall.', Markup('<svg></svg>'))
    >>> page.write('report.html')  # doctest: +SKIP
    """

    def __init__(self, title: str, lead: str = '', follow: int = 0) -> None:
        self.title, self.lead = title, lead
        self.follow = follow  # the seconds after which an open page reads itself again
        self.sections: list[dict[str, str | Sequence[str]]] = []

    def add(self, heading: str, text: str = '', figure: str | Sequence[str] = '', caption: str = '') -> 'Page':
        """Append a section: a heading, a plain sentence or two, and a figure or table, or figures side by side, with a caption.

        Whatever is not Markup is text and is escaped.
        """
        self.sections.append(dict(heading=heading, text=text, figure=figure, caption=caption))
        return self

    def write(self, path: str | Path) -> Path:
        return write_page(path, title=self.title, lead=self.lead, follow=self.follow, sections=self.sections)
