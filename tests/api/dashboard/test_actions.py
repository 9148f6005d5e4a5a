"""What the dashboard's buttons do."""

import re
from html import unescape

import httpx

from pubswap_server.web.actions import ACTIONS
from support.coordinator.coordinator import (
    Server,
    begun,
    create,
)
from support.coordinator.dashboard import form_token


def test_an_act_is_confirmed_with_its_consequence_and_then_done(
    server: Server, browser: httpx.Client
) -> None:
    """Pause, resume, suspend, reinstate and cancel take effect in the JSON API."""
    fed = begun(server)
    base = f"/runs/{fed.run.id}"
    for act, member, done in (
        ("pause", "", lambda: fed.view().paused),
        ("resume", "", lambda: not fed.view().paused),
        ("suspend", "a", lambda: fed.view().members[0].suspended),
        ("reinstate", "a", lambda: not fed.view().members[0].suspended),
        ("cancel", "", lambda: fed.view().state == "cancelled"),
    ):
        asked = browser.get(f"{base}/acts/{act}?member={member}")
        assert ACTIONS[act].consequence.replace("{member}", member) in unescape(asked.text)
        assert not done(), act
        fields = {"form_token": form_token(asked.text), "member": member}
        answer = browser.post(f"{base}/acts/{act}", data=fields)
        assert answer.status_code == 200, answer.text
        assert str(answer.url).endswith(base)
        assert done(), act
    assert browser.get(f"{base}/acts/nothing").status_code == 404
    nobody = browser.post(f"{base}/acts/suspend", data={"form_token": fields["form_token"]})
    assert nobody.status_code == 404
    nul = browser.post(f"{base}/acts/suspend", data=fields | {"member": "a\0"})
    assert nul.status_code == 422 and "NUL" in nul.text
    answer = browser.post(f"{base}/acts/pause", data=fields)
    assert answer.status_code == 409 and 'role="alert"' in answer.text


def test_an_update_is_excluded_from_the_round_that_was_shown_or_from_none(
    server: Server, browser: httpx.Client
) -> None:
    """If the round ends while the operator decides, the next round's update is not excluded."""
    fed = begun(server)
    path = f"/runs/{fed.run.id}/acts/exclude"

    def shown() -> dict[str, str]:
        asked = browser.get(f"{path}?member=a").text
        fields = re.findall(r'name="(\w+)" value="([^"]*)"', asked.partition("<main")[2])
        return dict(fields)

    before = shown()
    for name in "ab":
        fed.submit(name, 1, fed.adapter(1))
    fed.wait_for(1)
    fed.submit("a", 2, fed.adapter(2))
    assert browser.post(path, data=before).status_code == 409
    assert browser.post(path, data={**before, "round": "x"}).status_code == 409
    assert fed.view().rounds[2].updates == 1
    assert browser.post(path, data=shown()).status_code == 200
    assert fed.view().rounds[2].updates == 0


def test_an_invite_is_shown_once_with_the_command_that_takes_it(
    server: Server, browser: httpx.Client
) -> None:
    """The shown invite works; an invalid name is refused."""
    fed = create(server)
    page = browser.get(f"/runs/{fed.run.id}").text
    fields = {"form_token": form_token(page), "member": "bank-1", "role": "client"}
    shown = unescape(browser.post(f"/runs/{fed.run.id}/invites", data=fields).text)
    command = re.search(r"pubswap client enroll --coordinator (\S+) --invite (\S+)</pre>", shown)
    assert command is not None and command[1] == server.url
    assert server.client(None).enroll(command[2]).name == "bank-1"
    refused = browser.post(f"/runs/{fed.run.id}/invites", data=fields | {"member": "Bank 1"})
    assert refused.status_code == 422
