"""What a page asks beside kernels: the policy, and answers that are compressed."""

from __future__ import annotations

import gzip
import json
import urllib.request

import pytest


@pytest.fixture
def followed(shared_server, wait_until):
    """A server whose extension follows a controller."""
    wait_until(lambda: shared_server.affinode()[1]["available"])
    return shared_server


def test_a_user_changes_the_policy_of_their_own_controller(followed, wait_until):
    assert followed.affinode()[1]["node"]["policy"]["may_change"] is True
    status, settings = followed.affinode("policy", "PATCH", {"park_when": "idle", "idle_timeout_s": 77})
    assert (status, settings["park_when"], settings["idle_timeout_s"]) == (200, "idle", 77)
    assert followed.affinode()[1]["node"]["policy"]["idle_timeout_s"] == 77
    for body in ({"park_when": "never"}, {"configured_at": 5}, {"no_setting": 1}, []):
        status, answer = followed.affinode("policy", "PATCH", body)
        assert status == 400 and answer["message"], body
    followed.affinode("policy", "PATCH", {"park_when": "needed", "idle_timeout_s": 300})


def test_answers_are_compressed_for_browsers_that_take_it(followed):
    def ask(**headers):
        url = f"{followed.url}/affinode/api/status"
        request = urllib.request.Request(url, headers={"Authorization": f"token {followed.token}", **headers})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.headers, answer.read()

    headers, body = ask(**{"Accept-Encoding": "gzip"})
    assert headers["Content-Encoding"] == "gzip" and headers["Vary"] == "Accept-Encoding"
    assert json.loads(gzip.decompress(body))["available"] is True
    headers, body = ask()
    assert headers["Content-Encoding"] is None and json.loads(body)["code"] is None
