from __future__ import annotations

import os
import threading
import time

import msgspec
import psutil
import pytest

from asyncopd.records import Version, WeightFile
from asyncopd.tensors.rendezvous import BroadcastBroken, MeetingPlace, Rendezvous, announce, meet

WEIGHTS = WeightFile(
    version=Version(1, 2), path="", format="broadcast", tensors=(), checksum=2**64 - 1, dense_checksum=2**64 - 1
)


def rendezvous(place: MeetingPlace, *, rank: int = 0, timeout_s: float = 5.0) -> Rendezvous:
    return Rendezvous(
        transport="gloo",
        host="127.0.0.1",
        port=place.port,
        group="3f",
        members=2,
        update=7,
        rank=rank,
        timeout_s=timeout_s,
    )


@pytest.fixture
def place() -> MeetingPlace:
    return MeetingPlace("127.0.0.1")


def test_a_url_says_all(place: MeetingPlace) -> None:
    told = rendezvous(place, rank=1, timeout_s=1.5)
    assert Rendezvous.parse(told.url) == told
    assert told.as_member(0) == rendezvous(place, timeout_s=1.5)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/3f", "gloo://127.0.0.1/3f?update=1", "/dev/shm/weights-1"])
def test_another_url_is_refused(url: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        Rendezvous.parse(url)


def test_what_the_learner_announces_is_read_where_it_is_hosted(place: MeetingPlace) -> None:
    told = rendezvous(place)
    assert place.announced(7) is None
    announce(told.connect(), told, WEIGHTS)
    assert place.announced(7) == WEIGHTS
    assert place.announced(8) is None


def test_nobody_passes_a_door_before_all_stand_there(place: MeetingPlace) -> None:
    passed: list[int] = []

    def come(rank: int) -> None:
        told = rendezvous(place, rank=rank)
        meet(told.connect(), told)
        passed.append(rank)

    members = [threading.Thread(target=come, args=(rank,)) for rank in (1, 0)]
    members[0].start()
    time.sleep(0.1)
    assert passed == []
    members[1].start()
    for member in members:
        member.join(5)
    assert sorted(passed) == [0, 1]


def test_who_waits_too_long_says_for_whom(place: MeetingPlace) -> None:
    told = rendezvous(place, timeout_s=0.1)
    with pytest.raises(BroadcastBroken, match=r"^members \[1\] did not come within 0\.1 s"):
        meet(told.connect(), told)


def test_an_abandoned_update_is_waited_for_no_longer(place: MeetingPlace) -> None:
    place.abandon(7, "engine a takes no part")
    told = rendezvous(place, timeout_s=60)
    with pytest.raises(BroadcastBroken, match=r"^engine a takes no part"):
        meet(told.connect(), told)


def test_a_closed_place_is_refused_at_once_and_leaves_nothing_open() -> None:
    files = psutil.Process().num_fds()
    for _ in range(3):
        place = MeetingPlace("127.0.0.1")
        told = rendezvous(place, timeout_s=60)
        place.close()
        with pytest.raises(BroadcastBroken, match="nobody is met at"):
            told.connect()
    assert psutil.Process().num_fds() <= files + 1


def test_a_place_listens_on_its_own_address_only(place: MeetingPlace) -> None:
    listening = [
        connection.laddr.ip
        for connection in psutil.Process(os.getpid()).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == place.port
    ]
    assert listening == ["127.0.0.1"]
