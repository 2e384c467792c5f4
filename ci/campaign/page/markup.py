"""HTML elements as values. Whatever is not markup already is escaped, so that no writer can forget to."""

from __future__ import annotations

import html
import re
import urllib.parse

from campaign.page.text import printable


class Html(str):
    """Text that is markup."""


def escaped(value: object) -> Html:
    return value if isinstance(value, Html) else Html(html.escape(printable(value), quote=True))


def joined(*parts: object) -> Html:
    return Html("".join(escaped(part) for part in parts if part is not None))


_VOID = {"br", "img", "meta", "wbr"}


def element(tag: str, /, *children: object, **attributes: object) -> Html:
    """`element("p", text, class_="x", data_label="y")`; True stands bare, None and False not at all."""
    text = f"<{tag}"
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        text += f" {key}" if value is True else f' {key}="{escaped(value)}"'
    return Html(text + ">" if tag in _VOID else f"{text}>{joined(*children)}</{tag}>")


def breakable(name: str) -> Html:
    """A long name that may break behind its underscores and slashes."""
    return Html(re.sub(r"([_/.])(?=\w)", r"\1<wbr>", escaped(name)))


def relative(path: str) -> str:
    """A path as a link that cannot leave the page's own folder tree for another scheme or host."""
    return "./" + urllib.parse.quote(printable(path).lstrip("/"), safe="/#-_.~")



def absent(why: str) -> Html:
    """What stands where something would, had the campaign had it."""
    return element("p", why, class_="absent")
