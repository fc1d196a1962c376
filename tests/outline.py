"""Reads a page as a browser would, and says whether it is sound."""

import json
import re
from html import unescape
from html.parser import HTMLParser

VOID = {'meta', 'img', 'br', 'path', 'use', 'rect', 'link'}


class Outline(HTMLParser):
    """Counts a page's elements, collects its ids and references, and checks that every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.counts, self.references, self.ids, self.attributes = [], {}, [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        attrs = dict(attrs)
        self.attributes |= attrs.keys()
        self.references += [attrs[name] for name in ('src', 'href', 'data', 'srcset') if name in attrs]
        self.ids += [attrs['id']] if 'id' in attrs else []
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
    """Return what the charts of a page, or of a part of it, are drawn from."""
    return [json.loads(unescape(text)) for text in re.findall(r'data-chart="([^"]+)"', markup)]


def sound(text: str) -> Outline:
    """The outline of a page that is whole, needs no other file, and has a colour for light and dark wherever it uses one."""
    outline = Outline(text)
    assert outline.open == []
    assert outline.counts['script'] == 1
    assert len(outline.ids) == len(set(outline.ids))
    assert {'style', 'onclick', 'onerror', 'onload'}.isdisjoint(outline.attributes), 'the policy would not allow it'
    assert "default-src 'none'; img-src data:; style-src 'sha256-" in unescape(text)
    assert {ref[1:] for ref in outline.references if ref.startswith('#')} <= set(outline.ids)
    assert set(re.findall(r'url\(#([^)]+)\)', text)) <= set(outline.ids)
    assert all(ref.startswith(('#', 'data:', './')) for ref in outline.references)
    assert not re.search(r'url\((?!#)|@import|<link|https?://(?!www\.w3\.org)', text[: text.index('<script>')])
    used = set(re.findall(r'var\((--\w+)\)', text)) - {'--state'}
    schemes = re.findall(r':root \{([^}]*)\}', text)
    assert len(schemes) == 2 and all(used <= set(re.findall(r'(--\w+):', scheme)) for scheme in schemes)
    drawn = re.sub(r'data:[^"]+', '', text)
    assert not re.search(r'#0[0-9]0[0-9]0[0-9]', drawn), 'a chart with a black of its own'
    return outline
