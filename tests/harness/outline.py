"""Parse a page as a browser does, and check its structure."""

import json
import re
from collections import Counter
from html import unescape
from html.parser import HTMLParser

VOID = {'meta', 'img', 'br', 'path', 'use', 'rect', 'link'}


class Outline(HTMLParser):
    """Count the elements of a page, collect its ids and references, and check that every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: Counter[str] = Counter()
        self.references: list[str] = []
        self.ids: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.counts[tag] += 1
        for name, value in attrs:
            self.attributes.add(name)
            if name in ('src', 'href', 'data', 'srcset'):
                self.references.append(value)
            if name == 'id':
                self.ids.append(value)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def charts(markup: str) -> list[dict]:
    """Return the data of all charts in a page, or in a part of a page."""
    return [json.loads(unescape(text)) for text in re.findall(r'data-chart="([^"]+)"', markup)]


def sound(text: str) -> Outline:
    """Check that a page is well formed, loads no other file, and defines colors for light and dark mode.

    Return its outline.
    """
    outline = Outline(text)
    assert outline.open == []
    assert outline.counts['script'] == 1
    assert len(outline.ids) == len(set(outline.ids))
    assert {'style', 'onclick', 'onerror', 'onload'}.isdisjoint(outline.attributes), (
        'the page uses attributes that its content security policy forbids'
    )
    assert "default-src 'none'; img-src data:; style-src 'sha256-" in unescape(text)
    assert {ref[1:] for ref in outline.references if ref.startswith('#')} <= set(outline.ids)
    assert set(re.findall(r'url\(#([^)]+)\)', text)) <= set(outline.ids)
    assert all(ref.startswith(('#', 'data:', './')) for ref in outline.references)
    assert not re.search(r'url\((?!#)|@import|<link|https?://(?!www\.w3\.org)', text[: text.index('<script>')])
    used = set(re.findall(r'var\((--\w+)\)', text)) - {'--state'}
    schemes = re.findall(r':root \{([^}]*)\}', text)
    assert len(schemes) == 2 and all(used <= set(re.findall(r'(--\w+):', scheme)) for scheme in schemes)
    markup = re.sub(r'data:[^"]+', '', text)
    assert not re.search(r'#0[0-9]0[0-9]0[0-9]', markup), (
        'a chart contains a fixed black, which is invisible in dark mode'
    )
    return outline
