"""What people see of a cluster: a page in the dashboard, metrics, spans, logs, a report."""

from __future__ import annotations

import math
import os
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ostinato.ops.core.layout import Layout
from ostinato.planner.seeing.explain import amount
from ostinato.runtime.dashboard import panels
from ostinato.runtime.dashboard.counts import Counts, axis_between
from ostinato.runtime.dashboard.ledger import MAX_PLANS, PIPES, RECENT, Ledger
from ostinato.runtime.messages.communicator import Alone
from ostinato.runtime.worker import Worker

import ostinato as ost
from ostinato.errors import BoundsError
from tests.clusters import needs_page
from tests.fake_device import FAKE
from tests.front.test_cards import read
from tests.helpers import counts_traces
from tests.io_pipeline.pictures import folder
from tests.runtime.browser import CHROMIUM, Browser

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium on the PATH")
pytestmark = pytest.mark.filterwarnings("default")  # of Dask and Bokeh


def lloyd(x: Any, c: Any) -> Any:
    near = ((x[:, None, :] - c) ** 2).sum(2).argmin(1)
    chosen = (near[:, None] == np.arange(4)).astype("float32")
    return chosen.T @ x / (chosen.sum(0)[:, None] + 1)


def pick(x: Any, k: Any) -> Any:
    return x.sum(0)[k] * 2


class Work:
    """A cluster, and a job on it."""

    def __init__(self, cluster: ost.LocalCluster) -> None:
        self.cluster = cluster
        self.step, self.pick = ost.compile(lloyd), ost.compile(pick)
        r = np.random.default_rng(3)
        self.x = ost.asarray(r.normal(size=(50_001, 8)).astype(np.float32), split=0)
        self.c = ost.asarray(r.normal(size=(4, 8)).astype(np.float32))
        self.runs = 0
        self.go(5)
        np.asarray(self.pick(self.x, np.array([1, 3])))
        self.plan = self.step.plan

    def go(self, count: int) -> None:
        for _ in range(count):
            self.c = self.step(self.x, self.c)
            self.runs += 1
        ost.session().wait()

    def told(self) -> None:
        """All workers have said what they did."""
        from ostinato.runtime.dashboard import page

        self.cluster.client.run(page.tell)

    @property
    def address(self) -> str:
        return self.cluster.dashboard_link.removesuffix("/ostinato")


@pytest.fixture(scope="module")
def work() -> Iterator[Work]:
    with ost.LocalCluster(2) as cluster:
        yield Work(cluster)


# -- the page ------------------------------------------------------------------------------
def number(text: str, name: str) -> float:
    found = re.search(name + r" ([\d,.]+)", text)
    assert found, (name, text[-1500:])
    return float(found[1].replace(",", ""))


def as_number(text: str) -> int:
    return int(text.replace(",", ""))


@needs_page
@needs_browser
def test_the_page_shows_a_job_while_it_runs(work: Work) -> None:
    done = threading.Event()

    def job() -> None:
        while not done.is_set():
            work.go(20)

    worker = threading.Thread(target=job)
    with Browser() as browser:
        browser.open(f"{work.address}/status")
        assert browser.until("document.querySelector('a[href=ostinato]')?.innerText") == "Ostinato"
        browser.errors.clear()  # those of Dask's own page
        browser.open(f"{work.address}/ostinato")
        worker.start()
        try:
            end = time.monotonic() + 120  # the job takes all cores
            while work.plan.id[:8] not in browser.text():
                assert time.monotonic() < end, browser.text()
                time.sleep(0.1)
            before = number(browser.text(), "iterations")
            while (text := browser.text()) and number(text, "iterations") < before + 100:
                assert time.monotonic() < end, text
                time.sleep(0.1)
            first = number(text, "iterations")
            row = re.compile(rf"{work.plan.id[:8]} lloyd ([\d,]+) ")
            while not (shown := row.search(browser.text())) or as_number(shown[1]) < first + 100:
                assert time.monotonic() < end, "the table stands still"
                time.sleep(0.1)
            assert number(text, "workers") == 2
            assert number(text, "iterations per second") > 0
            for title in ("Plans", "Time of each worker", "Memory", "Between workers", "Graph"):
                assert title in text
            assert "worker 0" in text
            assert "worker 1" in text
            assert "axis 0 of 2" in text
        finally:
            done.set()
            worker.join(60)
        end = time.monotonic() + 120
        for plan, name in ((work.pick.plan, "pick"), (work.plan, "lloyd")):
            browser.click(name)
            while f"plan {plan.id[:12]}" not in browser.text():
                assert time.monotonic() < end, browser.text()
                time.sleep(0.1)
            assert f"Operations of {name}" in browser.text()
        assert browser.errors == []


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> Any:
    files = ost.io.images(str(folder(tmp_path_factory.mktemp("images"), 27)), labels="folder")
    made = files.shuffle(seed=3).decode().center_crop(16).normalize(0.5, 0.25).batch(6)
    return made.run_with(threads=2, chunk=1, tune=False)


@needs_page
@needs_browser
def test_the_page_shows_queues_while_a_pipe_feeds(work: Work, pipe: Any) -> None:
    done = threading.Event()
    mean = ost.compile(lambda x: x.mean())

    def job() -> None:
        while not done.is_set():
            for x, _ in pipe:
                float(mean(x))
                time.sleep(0.02)

    looped = threading.Thread(target=job)
    with Browser() as browser:
        browser.open(f"{work.address}/ostinato")
        end = time.monotonic() + 120
        while "Plans" not in browser.text():
            assert time.monotonic() < end, browser.text()
            time.sleep(0.1)
        assert "batches ahead" not in browser.text()
        browser.errors.clear()
        looped.start()
        try:
            queue = re.compile(r"worker 1 (\d+) of (\d+) (\d+) (\d+) 2 ")
            while not (found := queue.search(browser.text())) or int(found[3]) < 2:
                assert time.monotonic() < end, browser.text()
                time.sleep(0.1)
            ready, room, _, batches = map(int, found.groups())
            assert 0 <= ready <= room
            assert room >= 2
            assert batches <= len(pipe) == 5  # the last one has three samples
            text = browser.text()
            assert f"Pipe {pipe.called}" in text
            for stage in ("read", "decode", "center_crop", "normalize", "batch"):
                assert stage in text
            while "the step binds: the feed could be" not in browser.text():
                assert time.monotonic() < end, browser.text()
                time.sleep(0.1)
        finally:
            done.set()
            looped.join(60)
        assert browser.errors == []


@needs_page
def test_metrics_and_reports_tell_of_pipes(work: Work, pipe: Any, tmp_path: Path) -> None:
    with pipe.epoch(0) as epoch:
        for _ in range(2):
            next(epoch)
        work.told()
        found = metrics(work)
    for rank in "01":
        of = f'pipe="{pipe.called}",worker="{rank}"'
        ready, room = (
            found[f'ostinato_pipe_batches{{kind="{k}",{of}}}'] for k in ("ready", "room")
        )
        assert 0 <= ready <= room
        assert found[f'ostinato_pipe_seconds{{kind="feed",{of}}}'] > 0
    work.cluster.report(tmp_path / "run.html")
    text = (tmp_path / "run.html").read_text()
    assert f"{pipe.called}</span>" in text
    assert "center_crop" in text


def test_the_last_pipes_are_shown_each_by_its_slowest_worker() -> None:
    ledger = Ledger()

    def feed(seconds: float, limit: str) -> dict[str, Any]:
        times = {"mean": seconds, "median": seconds, "p90": seconds, "total": seconds}
        stage = {"stage": "de<code", "wall_us": 9.0, "cpu_us": 7.0, "wait_us": 2.0, "bytes": 5e6}
        queue = {"ready": 3, "being_made": 2, "room": 8, "epoch": 1, "batches": 1234, "threads": 4}
        more = {"stages": [stage], "limit": limit, "decisions": [], "step": times, "wait": times}
        return {**queue, **more, "feed": seconds}

    for k in range(PIPES + 2):
        ledger.hear("a", said(0, feeds=[[f"p{k}", feed(0.25, "fast")]]))
    ledger.hear("b", said(1, feeds=[["p9", feed(0.5, "slow <b>")], ["none", {}]]))
    assert ledger.pipes == [f"p{k}" for k in range(2, PIPES + 2)]
    text = panels.pipes(ledger)
    assert text.count("<h2>Pipe ") == PIPES
    last = re.sub("<[^>]*>", " ", text[text.rindex("<h2>") :])
    assert "worker 1: slow &lt;b&gt;" in last
    assert "3 of 8 1 1,234 4 500 ms" in " ".join(last.split())
    assert "de&lt;code" in last
    assert "width:37.50%" in text
    assert "width:25.00%" in text
    assert panels.pipes(Ledger()) == ""


def test_a_page_without_work_says_so() -> None:
    empty = Ledger()
    assert "No plan" in panels.operations(empty, "")
    assert "Nothing was sent" in panels.traffic(empty)
    assert number(re.sub("<[^>]*>", "", panels.facts(empty)), "workers") == 0


# -- metrics, spans, logs ------------------------------------------------------------------
def metrics(work: Work) -> dict[str, float]:
    with urllib.request.urlopen(f"{work.address}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("ostinato"))
    return {name: float(value) for name, value in pairs}


@counts_traces
@needs_page
def test_prometheus_counts_every_run(work: Work) -> None:
    work.go(37)
    work.told()
    found = metrics(work)
    runs = f'ostinato_runs_total{{name="lloyd",plan="{work.plan.id[:8]}"}}'
    assert found[runs] == work.runs
    work.go(3)
    work.told()
    after = metrics(work)
    assert after[runs] == work.runs
    for rank in "01":
        for kind in ("compute", "communication"):
            name = f'ostinato_seconds_total{{kind="{kind}",worker="{rank}"}}'
            assert 0 < found[name] < after[name]
        sent = f'ostinato_sent_bytes_total{{axis="0",worker="{rank}"}}'
        # in three runs, to the other: four centres and how many are near each, float32
        assert after[sent] - found[sent] == pytest.approx(3 * 4 * (8 + 1) * 4, abs=16)
        held = found[f'ostinato_memory_bytes{{kind="operands",worker="{rank}"}}']
        assert 25_000 * 8 * 4 <= held <= 25_001 * 8 * 4 + 4096


@needs_page
def test_runs_are_spans_of_the_task_stream(work: Work) -> None:
    began = time.time() - 1
    work.go(20)
    work.told()
    spans = [s for s in work.cluster.client.get_task_stream() if work.plan.id[:8] in s["key"]]
    assert {s["worker"] for s in spans} == set(work.cluster.client.nthreads())
    last = [t for s in spans for t in s["startstops"]][-1]
    assert began - RECENT < last["start"] < last["stop"] < time.time() + 1
    assert any(s["key"].startswith("lloyd-") for s in spans)


@needs_page
def test_logs_tell_of_plans_and_errors(work: Work) -> None:
    with pytest.raises(BoundsError) as raised:
        np.asarray(work.pick(work.x, np.array([1, 99])))
    work.go(1)
    logs = [str(entries) for entries in work.cluster.client.get_worker_logs().values()]
    assert len(logs) == 2
    for rank, said in enumerate(sorted(logs, key=lambda text: "worker 1 loaded" in text)):
        assert f"worker {rank} loaded plan {work.plan.id[:8]} (lloyd)" in said
        assert f"worker {rank} begins anew" in said
    line = re.search(r"test_dashboard\.py:\d+", str(raised.value))
    assert line
    assert any("failed in order" in said and line[0] in said for said in logs)


# -- a report ------------------------------------------------------------------------------
class Page(HTMLParser):
    """That all is closed that was opened, and nothing comes from elsewhere."""

    ALONE = ("meta", "br", "img", "link")

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not {"src", "href"} & {name for name, _ in attrs}
        if tag not in self.ALONE:
            self.opened.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@needs_page
def test_a_report_is_one_file(work: Work, tmp_path: Path) -> None:
    work.cluster.report(tmp_path / "run.html")
    page = Page()
    page.feed((tmp_path / "run.html").read_text())
    page.close()
    assert page.opened == []
    assert "script" not in page.tags
    assert "svg" in page.tags
    text = " ".join(page.words)
    for wanted in ("lloyd", work.plan.id[:8], "worker 1", "all_reduce", f"{work.runs:,}", "load"):
        assert wanted in text
    took = work.plan.measured
    assert took is not None
    assert took.steps


@needs_page
def test_a_cluster_without_a_dashboard_has_a_report(tmp_path: Path) -> None:
    with ost.LocalCluster(1, dashboard=False) as cluster:
        assert float(np.asarray(ost.compile(lambda x: x.sum())(np.ones(5)))) == 5
        cluster.report(tmp_path / "run.html")
        with pytest.raises(ost.errors.DataFileError, match="needed a folder that exists"):
            cluster.report(tmp_path / "nowhere" / "run.html")
    assert "test_dashboard.py" in (tmp_path / "run.html").read_text()
    assert "LocalCluster, closed" in read(cluster._repr_html_())


@needs_page
def test_a_card_of_a_cluster(work: Work) -> None:
    text = read(work.cluster._repr_html_())
    assert work.cluster.dashboard_link in text
    assert "processes of a Dask cluster" in text


@needs_page
def test_workers_of_this_machine_listen_to_it_alone(work: Work) -> None:
    """Beside what they inherit from mpiexec, which listens for its own."""
    import psutil  # Dask brings it

    def ports(process: int) -> set[tuple[str, int]]:
        found = psutil.Process(process).net_connections("inet")
        return {tuple(c.laddr) for c in found if c.status == psutil.CONN_LISTEN}

    cluster = work.cluster
    workers = [w["process"] for w in cluster.stats()["workers"]]
    scheduler = cluster.client.run_on_scheduler(os.getpid)
    assert cluster.job.keeper is not None
    (launcher,) = psutil.Process(cluster.job.keeper.pid).children()
    inherited = ports(launcher.pid)
    own = set().union(*map(ports, [*workers, scheduler])) - inherited
    assert len(own) >= 3
    assert {host for host, _ in own} == {"127.0.0.1"}


@pytest.mark.parametrize(
    ("size", "text"), [(1020 << 10, "1020 KiB"), (1536, "1.5 KiB"), (7, "7 B"), (3 << 30, "3 GiB")]
)
def test_amounts_are_read_without_powers_of_ten(size: int, text: str) -> None:
    assert amount(size) == text


# -- adding up -----------------------------------------------------------------------------
def said(rank: int, span: float = 1.0, **more: Any) -> dict[str, Any]:
    memory = {"operands": 0, "arena": 0, "peak": 0, "limit": None}
    empty: dict[str, Any] = {"plans": {}, "steps": {}, "sent": {}, "memory": memory}
    empty |= {"described": [], "feeds": []}
    return {"rank": rank, "span": span} | empty | more


def test_the_oldest_plans_go() -> None:
    ledger = Ledger()
    for k in range(MAX_PLANS + 3):
        described = [{"id": f"p{k}", "name": "f", "mesh": [1]}]
        ran = {f"p{k}": [1, 1, 0.1, 0.0, 0.1]}
        ledger.hear(
            "a", said(0, plans=ran, described=described, steps={f"p{k}": {"0": [0.1, 0.0]}})
        )
    assert [*ledger.plans] == [*ledger.steps] == [f"p{k}" for k in range(3, MAX_PLANS + 3)]
    assert ledger.called("p0") == "p0"


def test_the_memory_of_devices_is_shown_where_they_have_their_own() -> None:
    member = SimpleNamespace(
        parts={}, worker=Worker(0, Alone(), FAKE), communicator=SimpleNamespace(size=1)
    )
    on_device = Counts(member)._memory()  # type: ignore[arg-type]
    assert on_device["device free"] <= on_device["device total"]
    ledger, host = Ledger(), said(1)["memory"]
    ledger.hear("b", said(1, memory=host))
    assert "device" not in panels.memory(ledger)
    ledger.hear("a", said(0, memory=host | {"device total": 80 << 30, "device free": 7 << 30}))
    shown = re.sub("<[^>]*>", " ", panels.memory(ledger))
    assert re.search(r"limit +device total +device free +worker 0 .* 80 GiB +7 GiB", shown)


def test_what_others_take_longer_in_communication_is_waiting() -> None:
    ledger = Ledger()
    # 100 runs, of which 10 were clocked: 8 ms each, 1 ms of them in communication
    ledger.hear("a", said(0, plans={"p": [100, 10, 0.08, 0.01, 0.0]}), now=10.0)
    ledger.hear("b", said(1, plans={"p": [100, 10, 0.08, 0.05, 0.0]}), now=10.0)
    first, second = ledger.shares()
    assert (first.compute, first.communication, first.waiting) == pytest.approx((0.7, 0.1, 0.0))
    assert (second.compute, second.communication, second.waiting) == pytest.approx((0.3, 0.1, 0.4))
    assert first.idle == pytest.approx(0.2)
    assert ledger.imbalance() == pytest.approx(0.7 / 0.5 - 1)
    assert ledger.rate("p") == pytest.approx(100)


def test_the_first_run_is_no_measure_of_others() -> None:
    ledger = Ledger()
    ledger.hear("a", said(0, plans={"p": [101, 50, 0.05, 0.0, 0.4]}), now=10.0)
    (share,) = ledger.shares()
    assert share.compute == pytest.approx(0.4 + 100 * 0.001)
    ledger.hear("a", said(0, plans={"p": [100, 0, 0.0, 0.0, 0.0]}), now=11.0)  # none was clocked
    assert ledger.shares()[0].compute == pytest.approx(0.4 + 200 * 0.001)


def test_the_past_is_not_now() -> None:
    ledger = Ledger()
    ledger.hear("a", said(0, plans={"p": [50, 50, 0.5, 0.0, 0.0]}, sent={"0": 640}), now=10.0)
    ledger.hear("a", said(0, span=RECENT), now=10.0 + 2 * RECENT)
    assert ledger.rate("p") == 0
    assert len(ledger.workers["a"].recent) == 1
    assert ledger.total("p").runs == 50
    assert ledger.traffic() == {"0": (640, 0.0)}
    assert ledger.shares()[0].compute == 0
    assert ledger.shares(always=True)[0].compute == pytest.approx(0.5)


def test_messages_are_seen_beside_what_is_computed_meanwhile() -> None:
    rows = [
        {"nodes": [0, 3], "collective": True, "name": "all_reduce"},
        {"nodes": [1], "collective": False, "name": "matmul"},
        {"nodes": [2, 4], "collective": True, "name": "all_gather"},
    ]
    ledger = Ledger()
    took = {"0": [0.1] * 2, "1": [0.4, 0.0], "2": [0.1] * 2, "3": [0.3] * 2, "4": [0.1] * 2}
    ledger.hear("a", said(0, described=[{"id": "p", "rows": rows}], steps={"p": took}))
    ledger.hear("b", said(1, steps={"p": {"0": [0.2, 0.2], "1": [0.3, 0.0]}}))
    found = re.findall(
        r'title="(\w+): .*?left:([\d.]+)%;width:([\d.]+)%', panels.timeline(ledger, "p")
    )
    own = [("all_reduce", 0, 10), ("matmul", 10, 40), ("all_gather", 50, 10)]
    own += [("all_reduce", 60, 30), ("all_gather", 90, 10)]
    sent = [("all_reduce", 0, 90), ("all_gather", 50, 50)]
    other = [("all_reduce", 0, 20), ("matmul", 20, 30)]
    assert [(name, float(at), float(wide)) for name, at, wide in found] == own + sent + other
    assert panels.timeline(ledger, "p").count(">messages<") == 2, "both are under way at a time"
    assert panels.timeline(Ledger(), "p") == ""


def shares(text: str) -> dict[str, float]:
    """How much of the first worker's run a timeline shows in each colour, in percent."""
    found = dict.fromkeys((panels.COMPUTE, panels.TALK), 0.0)
    row = text.split("<tr>")[2]
    for wide, colour in re.findall(r"width:([\d.]+)%;background:(#\w+)", row):
        found[colour] += float(wide)
    return found


def test_a_loop_that_mostly_communicates_is_shown_so() -> None:
    """What is communication is what the clock says, not what an operation is called."""
    ledger = Ledger()
    rows = [{"nodes": [0], "collective": False, "name": "loop x 300"}]
    rows += [{"nodes": [-1], "collective": True, "name": "all_reduce"}]
    described = [{"id": "p", "rows": rows}]
    ledger.hear("a", said(0, described=described, steps={"p": {"0": [0.1, 0.074]}}))
    assert shares(panels.timeline(ledger, "p")) == {panels.COMPUTE: 26.0, panels.TALK: 74.0}


@needs_page
def test_the_turns_of_a_loop_tell_what_they_spend_in_communication(work: Work) -> None:
    f = ost.compile(lambda x: ost.repeat(300, lambda y: x * (y.sum() * 1e-6) + 1, x))
    x = ost.asarray(np.ones((60_000, 8)), split=0)  # too large to be gathered before the loop
    for _ in range(4):
        f(x)
    ost.session().wait()
    work.told()

    def look(dask_scheduler: Any, plan: str = f.plan.id) -> Any:
        from ostinato.runtime.dashboard import panels

        ledger = dask_scheduler.extensions["ostinato"].ledger
        return ledger.steps[plan][ledger.places[0][0]], panels.timeline(ledger, plan)

    steps, text = work.cluster.client.run_on_scheduler(look)
    took = max(each for each, _ in steps.values())
    loop, talk = next(step for step in steps.values() if step[0] == took)
    assert 0 < talk <= loop
    whole = sum(shares(text).values())
    talks = sum(talk for _, talk in steps.values()) / sum(each for each, _ in steps.values())
    assert shares(text)[panels.TALK] / whole == pytest.approx(talks, abs=0.01)


@needs_page
def test_the_link_of_a_cluster_opens_our_page(work: Work) -> None:
    assert work.cluster.dashboard_link.endswith("/ostinato")
    with urllib.request.urlopen(work.cluster.dashboard_link, timeout=10) as answer:
        assert "Ostinato" in answer.read().decode()


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_axes_are_those_of_layouts(mesh: list[int], data: st.DataObject) -> None:
    """Two workers differ along an axis of the mesh where they hold different parts of what is split along it."""
    size = math.prod(mesh)
    a, b = (data.draw(st.integers(0, size - 1)) for _ in range(2))
    differ = []
    for axis in range(len(mesh)):
        layout = Layout(tuple(mesh), tuple(0 if k == axis else None for k in range(len(mesh))))
        if layout.box((12,), a) != layout.box((12,), b):
            differ.append(axis)
    wanted = str(differ[0]) if len(differ) == 1 else "several"
    assert axis_between(a, b, tuple(mesh)) == wanted
