"""What `[queries]` takes and refuses: one clear message for each fault, all of them at once."""

from __future__ import annotations

import tomllib

import pytest

from penstock.lifecycles.queries.registry import registry
from penstock.lifecycles.queries.settings import QueriesSettings
from penstock.settings.file import load
from penstock.settings.secret import ConfigError

FEED = '[queries.feed_jsonl.feed]\nfolder = "feed"\n'
INFOJOBS = '[queries.infojobs.feed]\nclient_id = "me"\nclient_secret = { env = "SECRET" }\n'
API = """
[queries.rest_json.api]
url = "https://api.example.com"
date = "updated"
offer = { title = "title" }
parameters = { lang = "en", q = "jobs" }
send_as = { text = "q" }
"""
OWN = """
[queries.rest_json.api]
url = "https://api.example.com"
date = "updated"
table = "things"
fields.name = { path = "name" }
"""
SHEET = '[queries.sheet]\nspreadsheet_id = "1AbC"\ncredentials = { env = "KEY" }\n'


def settings(text: str) -> QueriesSettings:
    found = load(None, {"queries": QueriesSettings}, raw=tomllib.loads(text)).sections["queries"]
    assert isinstance(found, QueriesSettings)
    return found


def queries(client: str, *own: str) -> str:
    return "".join(f'[queries.queries.q{place}]\nclient = "{client}"\n{one}\n' for place, one in enumerate(own))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (FEED + queries("fed", ""), "queries.queries.q0: there is no client 'fed'; there are: feed"),
        (queries("feed", ""), "queries.q0: there is no client 'feed'; there are: none"),
        (FEED + INFOJOBS, "two clients are called 'feed'; rename one of them"),
        (
            FEED + queries("feed", 'parameters = { q = " a  b" }', 'parameters = { q = "a b" }'),
            "queries.queries.q1 asks the same as 'q0'; remove one of them",
        ),
        (FEED + queries("feed", "parameters = { q = nan }"), "queries.queries.q0.parameters: 'q' is nan"),
        (
            FEED + queries("feed", 'parameters = { Q = "a" }'),
            "queries.queries.q0.parameters: 'Q' is not a parameter of a folder of offers; it has files and q",
        ),
        (
            INFOJOBS + queries("feed", "parameters = { page = 2 }"),
            "queries.queries.q0.parameters: 'page' cannot be a parameter of a query: Penstock sets pages itself",
        ),
        (
            API + 'path = "/of/{city}"\n' + queries("api", 'parameters = { text = { a = "b" } }'),
            "queries.queries.q0.parameters: the query has no parameter 'city', which the path needs",
        ),
        (API + queries("api", "parameters = { text = [{}] }"), "the query's parameter 'text' cannot be sent"),
        (OWN + OWN.replace(".api", ".two"), "queries.rest_json.two.table: 'things' is the table of 'api' already"),
        ("[queries]\nmax_pages = 1", "queries.max_pages = 1 must be a whole number from 2 to"),
        (SHEET + 'hours = "06:00-03:00"', "queries.sheet.hours: 06:00-03:00 ends before it starts"),
        (FEED + queries("feed", 'horizon = "3d"\nseed_from = 2026-01-01'), "has both 'horizon' and 'seed_from'"),
        (FEED + queries("feed", "seed_from = 1989-12-31"), "seed_from: 1989-12-31 is before 1990-01-01"),
        (FEED + queries("feed", 'horizon = "36501d"'), 'horizon = "36501d" must be a span of time'),
        ('[queries]\nhorizon = "999999d"', 'horizon = "999999d" must be a span of time'),
        (FEED + 'time_zone = "Europe/Nowhere"', 'time_zone = "Europe/Nowhere" must be a time zone'),
        (SHEET + 'hours = "03:00-03:00"', 'hours = "03:00-03:00" must be two different times of day'),
        (SHEET + 'time_zone = "Mars/Base"', 'time_zone = "Mars/Base" must be a time zone'),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(text, says):
    with pytest.raises(ConfigError) as raised:
        settings(text)
    assert says in str(raised.value)


def test_all_faults_are_told_at_once():
    with pytest.raises(ConfigError) as raised:
        settings(FEED + INFOJOBS + queries("fed", "", ""))
    told = ["two clients are called 'feed'", "q0: there is no client", "q1: there is no client"]
    assert [words for words in told if words not in str(raised.value)] == []


@pytest.mark.parametrize(
    ("client", "given", "same"),
    [
        (FEED, 'files = "*.jsonl"', True),
        (FEED, 'files = "a*.jsonl"', False),
        (API, 'lang = "en"', True),
        (API, 'text = "jobs", LANG = " en "', True),
        (API, 'lang = "es"', False),
        (API, 'text = "job"', False),
    ],
)
def test_what_is_asked_anyway_does_not_change_the_key(client, given, same):
    name = "feed" if client == FEED else "api"
    (bare,) = registry(settings(client + queries(name, "")))
    (told,) = registry(settings(client + queries(name, f"parameters = {{ {given} }}")))
    assert (bare == told) is same


@pytest.mark.parametrize("hours", ["22:00-02:00", "18:00-08:00", "03:00-06:00"])
def test_hours_may_go_over_midnight(hours):
    sheet = settings(SHEET + f'hours = "{hours}"').sheet
    assert sheet is not None
    assert sheet.hours == hours


@pytest.mark.parametrize(
    ("changed", "given", "same"),
    [
        (('lang = "en"', 'lang = "es"'), "", False),
        (('q = "jobs"', 'q = "job"'), "", False),
        (('q = "jobs"', 'q = "job"'), 'text = "jobs"', True),
        (('lang = "en", q = "jobs"', 'q = "jobs", lang = "en"'), "", True),
        (('date = "updated"', 'date = "updated"\npath = "/v2"'), "", False),
        (('date = "updated"', 'date = "created"\nrequests_per_second = 9.0'), "", True),
        (('url = "https://api', 'url = "https://www'), "", True),
    ],
)
def test_another_path_or_another_parameter_of_a_client_makes_new_queries(changed, given, same):
    query = queries("api", f"parameters = {{ {given} }}")
    (before,), (after,) = (registry(settings(text + query)) for text in (API, API.replace(*changed)))
    assert (before == after) is same


def test_the_order_of_a_list_matters_where_the_client_says_so():
    def keys(more: str) -> set[str]:
        lists = ('sort = ["a", "b"]', 'sort = ["b", "a"]')
        made = (settings(API + more + queries("api", f"parameters = {{ {one} }}")) for one in lists)
        return {key for one in made for key in registry(one)}

    assert len(keys("")) == 1
    assert len(keys('ordered = ["sort"]\n')) == 2
