"""What the stylesheet keeps to, and that tables' figures stand under their headers."""

import re

import httpx
import pytest

from pubswap_protocol.messages import Evaluation, Progress, RunState
from pubswap_server.web.rendering import STATIC
from support.coordinator.coordinator import Server, begun

STYLE = (STATIC / "style.css").read_text()
TEMPLATES = "".join(path.read_text() for path in (STATIC.parent / "templates").glob("*.html"))
SCRIPTS = "".join(path.read_text() for path in STATIC.glob("*.js"))
NAMED_BY_VALUE = {*RunState, *(f"c{number}" for number in range(8))}


def test_sizes_and_spaces_come_from_the_scales() -> None:
    """Each size of type is a named one; so is each space, or nothing at all."""
    sizes = re.findall(r"font-size: ([^;]+);", STYLE)
    sizes += re.findall(r"font: (?!inherit)(\S+)/", STYLE)
    assert len(sizes) > 5
    assert {
        size for size in sizes if not re.fullmatch(r"var\(--(small|text|large|title)\)", size)
    } == set()
    spaces = re.findall(r"(?:margin|padding|gap)[a-z-]*: ([^;]+);", STYLE)
    named = r"(var\(--s[1-5]\)|0|auto|max\(var\(--s3\), 50% - 43rem\))"
    assert len(spaces) > 30
    assert {space for space in spaces if not re.fullmatch(rf"{named}( {named})*", space)} == set()


def test_no_rule_is_for_what_no_page_has() -> None:
    """A class in the stylesheet is in a template or a script, and the other way round."""
    ruled = set(re.findall(r"\.([a-z][\w-]*)", re.sub(r"/\*.*?\*/", "", STYLE)))
    unused = {
        name for name in ruled if not re.search(rf"(?<![\w-]){name}(?![\w-])", TEMPLATES + SCRIPTS)
    }
    assert unused <= NAMED_BY_VALUE
    plain = re.findall(r'class="([\w -]+)"', TEMPLATES)
    assert {name for names in plain for name in names.split()} <= ruled


@pytest.mark.parametrize("path", ["/", "/runs/{0}", "/compare?run={0}&run={1}"])
def test_figures_are_aligned_as_their_headers(
    server: Server, browser: httpx.Client, path: str
) -> None:
    """In each table, a column's cells and its header have the same alignment."""
    first, second = begun(server), begun(server)
    first.members["a"].heartbeat(first.run.id, Progress(round=1, step=1, steps=2, reward=0.5))
    found = Evaluation(pass_at_1=0.5, by_topic={"say": 0.5}, problems=5, seconds=1.0)
    first.members["judge"].submit_evaluation(first.run.id, 0, found)
    page = browser.get(path.format(first.run.id, second.run.id)).text
    seen = 0
    for table in re.findall(r"<table>(.*?)</table>", page, re.DOTALL):
        header, *others = (
            [bool(re.search(r'class="n[ "]', cell)) for cell in re.findall(r"<t[hd][^>]*>", row)]
            for row in re.findall(r"<tr.*?</tr>", table, re.DOTALL)
        )
        assert all(cells == header for cells in others), table
        seen += sum(header)
    assert seen, "the page has no figures"
