"""Samples in the memory of several workers: to the bit, for who knows the token, and never a reason to fail."""

from __future__ import annotations

import gc
import json
import socket
import threading
import time
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline.feed import store
from ostinato.io_pipeline.feed.cached import Cached
from ostinato.io_pipeline.feed.fields import Fields, fields_of
from ostinato.io_pipeline.feed.plain import Undescribed
from ostinato.io_pipeline.feed.store import (
    Others,
    Server,
    kept_bits,
    offer_of,
    packed,
    unpacked,
)

import ostinato as ost

SAMPLE = {
    "image": np.arange(24, dtype=np.uint8).reshape(2, 4, 3),
    "label": 3,
    "data": (b"bytes", "text", np.float32(2.5), np.zeros((0, 3)), None, 1.5),
}


def flat(sample: Any) -> tuple[list[Any], Fields]:
    fields, leaves = fields_of(sample)
    return leaves, fields


def pair(kept: dict[int, Any], count: int = 9, cut: Any = 0) -> tuple[Server, Others]:
    """A worker that has samples, and what another one knows of it."""
    server = Server(kept, "127.0.0.1")
    nothing = offer_of(Server({}, "127.0.0.1"), {}, count, 0)
    return server, Others(0, [nothing, offer_of(server, kept, count, cut)])


def test_samples_arrive_as_they_are() -> None:
    leaves, fields = flat(SAMPLE)
    head, parts = packed(leaves, fields)
    values, others = unpacked(head, b"".join(parts))
    assert others == fields
    for a, b in zip(leaves, values, strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_array_equal(a, b)
    with pytest.raises(Undescribed):
        packed([object()], fields)
    for x in (np.arange(6.0).reshape(2, 3).T, np.arange(3, dtype=">i4"), np.array(5, ">f8")):
        head, parts = packed([x], fields)
        (made,), _ = unpacked(head, b"".join(parts))
        np.testing.assert_array_equal(made, x)
        assert made.shape == x.shape


def test_who_has_a_sample_gives_it() -> None:
    kept = {4: flat(SAMPLE), 7: flat({"image": object()})}
    _server, others = pair(kept)
    found = others.get(4)
    assert found is not None
    np.testing.assert_array_equal(found[0][-2], SAMPLE["image"])  # keys in order
    assert [others.get(k) for k in (0, 7, 8)] == [None] * 3  # 7 is no data
    assert others.fetched == 1
    assert not others.lost


def test_other_cuts_are_other_samples() -> None:
    _server, others = pair({4: flat(SAMPLE)}, cut=1)
    assert others.get(4) is None


def test_who_is_gone_is_asked_no_more() -> None:
    server, others = pair({4: flat(SAMPLE), 5: flat(SAMPLE)})
    assert others.get(4) is not None
    del server
    gc.collect()
    assert others.get(5) is None
    assert others.lost == {1}
    until = time.monotonic() + 60
    while any(t.name == "ostinato-store" for t in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_who_does_not_know_the_token_gets_nothing() -> None:
    server, _ = pair({4: flat(SAMPLE)})
    with socket.create_connection(tuple(server.address), 5) as line:
        line.sendall(b"0" * store.TOKEN)
        assert line.recv(1) == b""


@pytest.mark.parametrize(
    "said",
    [
        store._HEAD.pack(5, 3) + b"{}   abc",
        store._HEAD.pack(1 << 31, 1 << 60),
        store._HEAD.pack(40, 1) + b'[[["data"],"*"],[["bytes",99999]]]      x',
        store._HEAD.pack(9, 0),
    ],
)
def test_damaged_answers_are_none(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PATIENCE", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            line, _ = server.accept()
            line.recv(100)
            line.sendall(said)
            time.sleep(0.2)
            line.close()

        thread = threading.Thread(target=answer)
        thread.start()
        kept = {4: flat(SAMPLE)}
        offers = [offer_of(Server(k, "127.0.0.1"), k, 9, 0) for k in ({}, kept)]
        offers[1]["address"] = list(server.getsockname())
        others = Others(0, offers)
        assert others.get(4) is None
        assert others.lost == {1}
        thread.join()


def test_who_keeps_what_is_told_in_few_bytes() -> None:
    kept = [*range(0, 100_000, 1000)]
    offer = offer_of(Server({}, "127.0.0.1"), kept, 100_003, 0)
    assert len(json.dumps(offer)) < 1000
    bits = kept_bits(offer)
    assert (len(bits), np.flatnonzero(bits).tolist()) == (100_003, kept)


def test_a_cache_takes_what_others_have() -> None:
    """And makes what they lost."""
    x = np.arange(20).reshape(10, 2)

    def cache() -> Cached:
        made = ost.io.arrays(x).cache(1 << 20).source
        assert isinstance(made, Cached)
        return made

    one, two = cache(), cache()
    for k in range(5):
        one.read(k)
    for k in range(5, 8):
        two.read(k)
    offers = [c.offer("127.0.0.1") for c in (one, two)]
    for rank, c in enumerate((one, two)):
        c.meet(rank, offers)
    for c in (one, two):
        for k in range(10):
            np.testing.assert_array_equal(c.read(k)[0][0], x[k])
    assert (one.made, two.made) == (7, 5)
    assert one.others is not None
    assert one.others.fetched == 3
    assert one.space.used == 7 * x[0].nbytes  # what came from another is not kept
