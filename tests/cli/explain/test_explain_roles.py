"""How `explain NODE` describes a broker's role."""

import pytest

from rmqkit.cli.explain.roles import as_document, sentences
from rmqkit.cluster.health.roles import RoleStatus

ON = {"enableSlaveActingMaster": "true"}


def said(role="master", online="online", why="", stage="", head=0, members=("0", "1")):
    return RoleStatus(role, online, 1, why, stage, dict.fromkeys(members, "127.0.0.1:10911"), head)


@pytest.mark.parametrize(
    ("role", "what", "do"),
    [
        (said(), "Live members of its group: 0, 1; the master leads.", ""),
        (said("slave", head=1, members=("1", "2")), "1, 2; 1 is the smallest id, which acts", ""),
        (said("slave", members=(), head=None), "It does not know which members of its group are alive.", ""),
        (said("acting", why="the master is gone", head=1), "It acts for its master: the master is gone.", "cluster start"),
        (
            said("master", "pre-online", "it was stalled for 4000 ms", "asks broker 1 for offsets"),
            "refuses clients: it was stalled for 4000 ms. Current step: asks broker 1 for offsets.",
            "goes online again by itself",
        ),
        (said("master", "isolated", "a name server has removed it"), "It is isolated", "heartbeats came too late"),
    ],
)
def test_a_role_in_words(role, what, do):
    (found,) = sentences(role, ON)
    assert what in found.what
    assert do in found.do


def test_a_slave_that_does_not_act_says_why():
    role = said("slave", why="the master is back; does not act yet: its queues do not have all of its log yet")
    _alive, why = sentences(role, ON)
    assert why.what == "Does not act yet: its queues do not have all of its log yet."
    assert why.do


def test_a_broker_whose_role_cannot_change_has_no_sentences():
    assert sentences(said(), {}) == []
    assert as_document(None, ON) is None
    document = as_document(said(), ON)
    assert (document["role"], document["online"], len(document["says"])) == ("master", "online", 1)
