"""The page of a round's responses to the test set."""

from html import unescape
from typing import Any

import httpx

from pubswap_protocol.messages import FullEvaluation, JudgedResponse
from support.coordinator.coordinator import Federation, Server, begun

HOSTILE = '</pre><script>alert("x")</script>{{ 7 * 7 }}<img src=x onerror=alert(1)>'
WARNING = "29 of 30 right answers <i>repeat</i> the question"


def evaluated(server: Server, **more: Any) -> Federation:
    """A run whose start has a right and a wrong response, in two topics, one hostile."""
    fed = begun(server)
    texts = {"sums": "27 - 8", "SUMS": HOSTILE}
    shown = [
        JudgedResponse(topic=topic, prompt=HOSTILE, answer=HOSTILE, response=text, right=not n)
        for n, (topic, text) in enumerate(texts.items())
    ]
    figures = {"pass_at_1": 0.5, "by_topic": {"sums": 1.0}, "problems": 2, "seconds": 1.0}
    body = FullEvaluation(**figures, responses=shown, **more)
    fed.members["judge"].submit_evaluation(fed.run.id, 0, body)
    return fed


def test_responses_are_shown_as_inert_text(server: Server, browser: httpx.Client) -> None:
    """By topic, with verdict, question and gold."""
    fed = evaluated(server)
    page = browser.get(f"/runs/{fed.run.id}/rounds/0/responses").text
    assert "<script>alert" not in page and "<img" not in page
    assert page.count("{{ 7 * 7 }}") == 5
    assert unescape(page).count(HOSTILE) == 5
    right, wrong = page.index('<li class="right">'), page.index('<li class="wrong">')
    assert wrong < right, "topics are by name, and not merged"
    assert "27 - 8" in page[right:] and "<strong>Wrong</strong>" in page[wrong:]
    assert "pass@1 0.500 (0.09 to 0.91, n = 2)" in page


def test_the_run_s_page_leads_to_them(server: Server, browser: httpx.Client) -> None:
    """From its acts, its rounds, and the warning if there is one, which is escaped."""
    fed = begun(server)
    assert "/responses" not in browser.get(f"/runs/{fed.run.id}").text
    missing = browser.get(f"/runs/{fed.run.id}/rounds/0/responses")
    assert missing.status_code == 404 and "was not evaluated" in missing.text
    path = f'href="/runs/{evaluated(server).run.id}/rounds/0/responses"'
    calm = browser.get(path.split('"')[1].partition("/rounds")[0]).text
    assert calm.count(path) == 3 and "Suspicious" not in calm
    fed = evaluated(server, warning=WARNING)
    page = browser.get(f"/runs/{fed.run.id}").text
    assert page.count(f"/runs/{fed.run.id}/rounds/0/responses") == 5
    assert f"Suspicious: {WARNING}, in round 0." in unescape(page)
    assert "<i>repeat</i>" not in page
    responses = browser.get(f"/runs/{fed.run.id}/rounds/0/responses").text
    assert f"Suspicious: {WARNING}." in unescape(responses)


def test_a_topic_s_responses_are_read_round_by_round(server: Server, browser: httpx.Client) -> None:
    """Each figure of pass@1 leads to its own; a topic without any is no error."""
    fed = evaluated(server)
    page = unescape(browser.get(f"/runs/{fed.run.id}").text)
    path = f"/runs/{fed.run.id}/rounds/0/responses"
    assert page.count(f'href="{path}?topic=sums"') == 1, "first and last are the same round"
    one = browser.get(path, params={"topic": "sums"}).text
    assert "27 - 8" in one and '<li class="wrong">' not in one
    assert f'href="{path}?topic=sums" aria-current="page"' in one
    none = browser.get(path, params={"topic": "<b>"})
    assert none.status_code == 200 and "No response of the topic &lt;b&gt; was kept" in none.text


def test_a_viewer_sees_the_warning_and_not_the_test_set(server: Server) -> None:
    """A viewer may belong to an organisation that trains."""
    fed = evaluated(server, warning=WARNING)
    token = fed.operator.add_viewer(f"board-{fed.run.id}").token
    with server.http(None) as http:
        http.follow_redirects = True
        http.post("/sign-in", data={"token": token})
        page = http.get(f"/runs/{fed.run.id}").text
        assert "Suspicious" in page and "/responses" not in page
        refused = http.get(f"/runs/{fed.run.id}/rounds/0/responses")
        assert refused.status_code == 403 and "27 - 8" not in refused.text
