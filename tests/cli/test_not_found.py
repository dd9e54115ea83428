"""A name that does not exist: one line tells what went wrong, one line what to do, and the exit code is 4."""

import pytest

from tests.cli.conftest import Fabric

GROUPS = "'fabric group list' shows the existing names"
TOPICS = "'fabric topic list' shows the existing names"
QUEUES = "'fabric queue list' shows the existing names"
LETTERS = "'fabric dlq list' shows the groups with dead letters, and 'fabric dlq list GROUP' the dead letters"
SCHEDULES = "'fabric schedule list' shows the ids and names of the schedules that wait"
SESSIONS = "'fabric session list' shows the numbers and clients of the sessions"
PRODUCERS = "the hub tells no names of producers: look for producer= or source= in the program that publishes"
MESSAGES = "'fabric get --last -o json' shows the newest messages with their seqs and keys"

UNKNOWN = {
    "trace 99": ("no message has seq 99: the journal is empty", MESSAGES),
    "trace --id nope": ("there is no message with id 'nope'", MESSAGES),
    "trace --key nope --topic a --before 9": (
        "there is no message with key 'nope' on a topic that matches 'a' below seq 9",
        MESSAGES,
    ),
    "group show nope": ("there is no group 'nope'", GROUPS),
    "group settle nope --up-to 3": ("there is no group 'nope'", GROUPS),
    "info group nope": ("there is no group 'nope'", GROUPS),
    "topic show nope": ("there is no topic 'nope': it has no settings, and no message is stored on it", TOPICS),
    "topic purge nope --dry-run": (
        "there is no topic 'nope': it has no settings, and no message is stored on it",
        TOPICS,
    ),
    "topic update nope --max-age 1h": (
        "topic 'nope' has no settings: create it first",
        "'fabric topic create nope' gives it settings",
    ),
    "info topic nope": ("there is no topic 'nope': it has no settings, and no message is stored on it", TOPICS),
    "queue delete nope": ("there is no queue 'nope'", QUEUES),
    "queue purge nope": ("there is no queue 'nope'", QUEUES),
    "producer delete nope --yes": ("there is no producer 'nope'", PRODUCERS),
    "session kick nope --yes": ("there is no session of client 'nope'", SESSIONS),
    "session kick 99 --yes": ("there is no session of number 99", SESSIONS),
    "schedule cancel nope": (
        "no schedule has the name 'nope': it has fired, was cancelled, or never existed",
        SCHEDULES,
    ),
    "info schedules nope": ("there is no schedule 'nope'", SCHEDULES),
    "dlq list nope": ("there is no group 'nope', and there are no dead letters of a group of this name", LETTERS),
    "dlq redrive nope 3 --yes": (
        "there is no group 'nope', and there are no dead letters of a group of this name",
        LETTERS,
    ),
    "info dlq nope": ("there is no group 'nope', and there are no dead letters of a group of this name", LETTERS),
    "setting set nope on": ("there is no setting 'nope'", "there are events, advisories"),
    "request nope x": ("no responder answers requests to topic 'nope'", "start a responder with 'fabric respond'"),
}


def test_each_noun_has_a_hint_of_its_own(talk: Fabric) -> None:
    for command, (error, hint) in UNKNOWN.items():
        result = talk(*command.split())
        assert (result.exit_code, result.stderr) == (4, f"error: {error}\nhint: {hint}\n"), command
        assert result.stdout == ""


@pytest.mark.parametrize("verb", ["peek", "redrive", "discard"])
def test_an_unknown_dead_letter_is_not_found(talk: Fabric, verb: str) -> None:
    talk("group", "create", "g", "a")
    result = talk("dlq", verb, "g", "3", *(["--yes"] if verb != "peek" else []))
    assert result.exit_code == 4
    assert "has no dead letter 3" in result.stderr
    assert "hint: 'fabric dlq list" in result.stderr
