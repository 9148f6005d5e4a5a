"""Reads the dashboard's pages."""

import re
from html import unescape


def form_token(page: str) -> str:
    """The anti-forgery token in a page's forms."""
    found = re.search(r'name="form_token" value="([^"]+)"', page)
    assert found is not None
    return found[1]


def rows(page: str) -> list[list[str]]:
    """The cell texts of a page's tables, row by row."""
    return [
        [unescape(re.sub(r"<[^>]*>", "", cell)).strip() for cell in re.split(r"</t[hd]>", row)[:-1]]
        for row in re.findall(r"<tr[^>]*>(.*?)</tr>", page, re.DOTALL)
    ]


def hidden(page: str) -> dict[str, str]:
    """The hidden fields of a page's forms."""
    found = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page)
    return {name: unescape(value) for name, value in found}


def shown_file(page: str) -> str:
    """The run file in the page's text area."""
    found = re.search(r"<textarea[^>]*>(.*?)</textarea>", page, re.DOTALL)
    assert found is not None
    return unescape(found[1])
