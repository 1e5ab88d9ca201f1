# SPDX-License-Identifier: Apache-2.0
"""The rules of a rendezvous, by table: without sockets or a clock."""

import pytest

from horovod.common.rendezvous.meeting import Arrival, MeetingBoard
from horovod.common.rendezvous.waiting_list import WaitingList


def arrival(rank, size=2, generation=0, *, version="1.0", host="h", deadline=10.0, key=None):
    return Arrival(
        key=key if key is not None else (generation, rank),
        rank=rank,
        size=size,
        generation=generation,
        version=version,
        host=host,
        info={"rank": rank},
        deadline=deadline,
    )


def meet(board, *arrivals):
    answers = []
    for one in arrivals:
        answers += board.arrive(one)
    return dict(answers)


def test_everyone_learns_the_same_when_the_last_one_comes():
    board = MeetingBoard()
    assert board.arrive(arrival(1)) == []
    answers = dict(board.arrive(arrival(0)))
    assert set(answers) == {(0, 0), (0, 1)}
    assert answers[0, 0] == answers[0, 1]
    assert answers[0, 0]["infos"] == [{"rank": 0}, {"rank": 1}]
    assert len(answers[0, 0]["world_id"]) == 32
    assert board.next_deadline() is None


def test_rank_0_hears_last_because_it_may_serve_and_then_end():
    board = MeetingBoard()
    for rank in (0, 2):
        board.arrive(arrival(rank, 3))
    assert [key for key, _ in board.arrive(arrival(1, 3))] == [(0, 2), (0, 1), (0, 0)]


def test_every_generation_gets_its_own_world_id():
    board = MeetingBoard()
    ids = {meet(board, arrival(0, generation=g), arrival(1, generation=g))[g, 0]["world_id"] for g in range(3)}
    assert len(ids) == 3


@pytest.mark.parametrize(
    ("present", "late", "text"),
    [
        (arrival(0, host="a"), arrival(0, host="b", key="x"), "rank 0 came twice: from a and from b"),
        (arrival(0, host="a"), arrival(1, size=3, key="x"), "world has 3 ranks, rank 0 on a says 2"),
        (arrival(0, generation=5), arrival(1, generation=4, key="x"), "generation 4, but generation 5 has begun"),
    ],
)
def test_who_does_not_fit_is_refused_and_the_others_go_on_waiting(present, late, text):
    board = MeetingBoard()
    board.arrive(present)
    [(key, reply)] = board.arrive(late)
    assert key == "x"
    assert not reply["ok"]
    assert text in reply["error"]
    assert board.next_deadline() == present.deadline


def test_a_generation_that_has_met_is_closed():
    board = MeetingBoard()
    meet(board, arrival(0), arrival(1))
    [(_, reply)] = board.arrive(arrival(0, key="late"))
    assert "generation 0 has already met" in reply["error"]


def test_a_newer_generation_releases_those_who_wait_for_an_older_one():
    board = MeetingBoard()
    board.arrive(arrival(0, generation=1))
    [(key, reply)] = board.arrive(arrival(1, generation=2))
    assert key == (1, 0)
    assert "generation 1 is over" in reply["error"]


def test_mixed_versions_give_every_rank_the_table():
    board = MeetingBoard()
    hosts = [("node-a", "1.0"), ("node-a", "1.0"), ("b", "1.1")]
    answers = meet(board, *(arrival(r, 3, host=h, version=v) for r, (h, v) in enumerate(hosts)))
    assert len(answers) == 3
    assert {reply["error"] for reply in answers.values()} == {
        "the workers run different versions of khorovod; install the same one everywhere:\n"
        "  host    version  ranks\n"
        "  node-a  1.0      0,1\n"
        "  b       1.1      2"
    }


def test_whose_time_is_over_learns_who_is_missing():
    board = MeetingBoard()
    board.arrive(arrival(0, 4, deadline=10))
    board.arrive(arrival(2, 4, deadline=12))
    assert board.expire(9.9) == []
    [(key, reply)] = board.expire(10)
    assert key == (0, 0)
    assert "ranks 1,3 of 4" in reply["error"]
    assert board.next_deadline() == 12


def test_who_waits_for_whom():
    board = MeetingBoard()
    assert board.who_waits() is None
    board.arrive(arrival(1, 4))
    assert board.who_waits() == "rank 1 of 4 waits in hvd.init() for ranks 0,2,3"
    board.arrive(arrival(0, 4))
    board.arrive(arrival(3, 4))
    assert board.who_waits() == "ranks 0,1,3 of 4 wait in hvd.init() for rank 2"
    board.arrive(arrival(2, 4))
    assert board.who_waits() is None


def test_one_who_left_may_come_again():
    board = MeetingBoard()
    board.arrive(arrival(0, key="first"))
    board.leave("first")
    answers = meet(board, arrival(0, key="again"), arrival(1))
    assert set(answers) == {"again", (0, 1)}
    assert answers["again"]["ok"]


def test_a_known_loss_reaches_those_who_wait_and_those_who_come():
    board = MeetingBoard()
    board.arrive(arrival(0))
    assert board.lose(2, "not of this world") == []
    assert [reply["error"] for _, reply in board.lose(1, "rank 1 died")] == ["rank 1 died"]
    assert [reply["error"] for _, reply in board.arrive(arrival(0))] == ["rank 1 died"]
    assert [reply["error"] for _, reply in board.arrive(arrival(0, generation=1))] == ["rank 1 died"]
    assert meet(board, arrival(0, 1))[0, 0]["ok"]


def test_a_closed_generation_sends_everybody_back_and_the_next_one_meets_with_the_same_ranks():
    board = MeetingBoard()
    board.arrive(arrival(0, 3))
    [(key, reply)] = board.close(0, "rank 2 has ended")
    assert key == (0, 0)
    assert reply == {"ok": False, "error": "rank 2 has ended", "again": True}
    [(_, late)] = board.arrive(arrival(1, 3, key="late"))
    assert late["again"]
    assert all(reply["ok"] for reply in meet(board, arrival(0, generation=1), arrival(1, generation=1)).values())


def test_workers_wait_for_places_by_birth_id():
    waiting = WaitingList()
    waiting.ask(7, "seven")
    waiting.ask(8, "eight")
    waiting.leave("eight")
    assert waiting.give({7: {"rank": 0}, 8: {"rank": 1}}, 3) == [
        ("seven", {"ok": True, "generation": 3, "place": {"rank": 0}})
    ]
    assert waiting.give({7: {"rank": 0}}, 4) == []
    waiting.ask(7, "seven")
    assert waiting.dismiss(7, "gone") == [("seven", {"ok": False, "error": "gone", "dismissed": True})]
    assert waiting.listen(7, "ear") == [("ear", {"ok": True})]
    assert waiting.notify([7, 9], {"update": 1}) == [("ear", {"update": 1})]


def test_who_got_a_signal_waits_for_an_excuse():
    waiting = WaitingList()
    assert waiting.preempted(7, "seven") == waiting.preempted(8, "eight") == waiting.preempted(9, "nine") == []
    waiting.leave("nine")
    assert waiting.excuse(7, True) == [("seven", {"ok": True})]
    assert waiting.excuse(7, True) == waiting.excuse(9, True) == []
    refused = {"ok": False, "error": "this worker is to end at once"}
    assert waiting.excuse_nobody() == [("eight", refused)]
    assert waiting.preempted(7, "again") == [("again", refused)]
