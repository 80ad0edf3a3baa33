"""The page "Ostinato" of Dask's dashboard, and what else its scheduler shows of crews: metrics for
Prometheus, and spans in the task stream.

Workers tell their counts with the heartbeats that Dask sends anyway, so nothing else is sent."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Iterator
from typing import Any

from ostinato.runtime.crew.member import Member

from . import panels
from .counts import Counts
from .ledger import Batch, Ledger

NAME = "ostinato"
EVERY = 500  # milliseconds between updates of the page
PALETTE = ("#3b6ea5", "#d9a441", "#5aa469", "#7d5ba6", "#c0504d", "#4aa3a2", "#8c6d46", "#5b6b7b")
_log = logging.getLogger("distributed.worker.ostinato")


# -- in a worker ---------------------------------------------------------------------------
class Teller:
    """Adds a worker's counts to its heartbeats."""

    def __init__(self) -> None:
        self.counts: list[Counts] = []

    @contextlib.contextmanager
    def watching(self, member: Member) -> Iterator[None]:
        """Count what a member does until it ends, and tell the rest then."""
        counts = Counts(member)
        self.counts.append(counts)
        try:
            yield
        finally:
            counts.ended = True

    def heartbeat(self) -> list[dict[str, Any]]:
        try:
            ended = [c for c in self.counts if c.ended]  # before their last counts are taken
            said = [c.take() for c in self.counts]
        except Exception:  # it would end the worker
            _log.exception("ostinato: counting failed")
            return []
        self.counts = [c for c in self.counts if c not in ended]
        return said


def teller(worker: Any) -> Teller:
    return worker.extensions.setdefault(NAME, Teller())


async def tell(dask_worker: Any) -> None:
    """Say now what has happened, and what the plans are."""
    import asyncio

    await dask_worker.heartbeat()
    while any(c.writer is not None and c.writer.is_alive() for c in teller(dask_worker).counts):
        await asyncio.sleep(0.01)
    await dask_worker.heartbeat()


# -- in the scheduler ----------------------------------------------------------------------
class Office:
    """Keeps the ledger of a scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = weakref.ref(scheduler)
        self.ledger = Ledger()
        self.spans = 0

    def heartbeat(self, state: Any, said: list[dict[str, Any]]) -> None:
        scheduler = self.scheduler()
        gone = self.ledger.workers.keys() - scheduler.workers.keys() if scheduler else set()
        try:
            for address in gone:
                self.ledger.leave(address)
            for counts in said:
                batch = self.ledger.hear(state.address, counts)
                self._show(state, batch)
        except Exception:  # it would end the worker
            _log.exception("ostinato: a worker's counts make no sense")

    def _show(self, state: Any, batch: Batch) -> None:
        """Show what a worker did since it spoke last in the task stream: a span per plan and part of it."""
        from distributed.diagnostics.task_stream import TaskStreamPlugin

        scheduler = self.scheduler()
        if scheduler is None or not batch.plans:
            return
        if TaskStreamPlugin.name not in scheduler.plugins:
            scheduler.add_plugin(TaskStreamPlugin(scheduler))
        stream = scheduler.plugins[TaskStreamPlugin.name]
        worker = self.ledger.workers[state.address]
        start = batch.at - batch.span
        for plan, tally in batch.plans.items():
            known = tally if tally.clocked else worker.plans[plan]
            spans = []
            parts = ("transfer", known.talk), ("compute", max(0.0, known.each - known.talk))
            for action, each in parts:
                stop = min(batch.at, start + tally.runs * each)
                if stop > start:
                    spans.append({"action": action, "start": start, "stop": stop})
                start = max(start, stop)
            if not spans:
                continue
            self.spans += 1
            stream.transition(
                f"{self.ledger.called(plan)}-{plan[:8]}-{self.spans}",
                "processing",
                "memory",
                worker=state.address,
                thread=worker.rank,
                status="OK",
                nbytes=0,
                type=b"",
                startstops=spans,
            )

    def metrics(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        ledger = self.ledger
        runs = CounterMetricFamily("ostinato_runs", "Runs of a plan", labels=["plan", "name"])
        for plan in ledger.ran:
            runs.add_metric([plan[:8], ledger.called(plan)], ledger.total(plan).runs)
        took = CounterMetricFamily(
            "ostinato_seconds",
            "Seconds that a worker spent in runs, computing or in communication",
            labels=["worker", "kind"],
        )
        sent = CounterMetricFamily(
            "ostinato_sent_bytes", "Bytes over an axis of the mesh", labels=["worker", "axis"]
        )
        memory = GaugeMetricFamily(
            "ostinato_memory_bytes", "Memory of a worker", labels=["worker", "kind"]
        )
        waiting = GaugeMetricFamily(
            "ostinato_pipe_batches", "Batches of a pipe", labels=["worker", "pipe", "kind"]
        )
        lasting = GaugeMetricFamily(
            "ostinato_pipe_seconds", "Of a batch, lately", labels=["worker", "pipe", "kind"]
        )
        for worker in ledger.crew:
            rank = str(worker.rank)
            for name, feed in worker.feeds.items():
                for kind in ("ready", "being_made", "room"):
                    waiting.add_metric([rank, name, kind], feed[kind])
                lasting.add_metric([rank, name, "feed"], feed["feed"])
                for kind in ("step", "wait"):
                    lasting.add_metric([rank, name, kind], feed[kind]["mean"])
            took.add_metric([rank, "compute"], worker.computing)
            took.add_metric([rank, "communication"], worker.talking)
            for axis, count in worker.sent.items():
                sent.add_metric([rank, axis], count)
            for kind, size in worker.memory.items():
                if size is not None:
                    memory.add_metric([rank, kind], size)
        yield from (runs, took, sent, memory, waiting, lasting)


def install(dask_scheduler: Any) -> bool:
    """Show what crews of this scheduler's workers do, if that is not done yet; whether there is a page."""
    if NAME not in dask_scheduler.extensions:
        office = dask_scheduler.extensions[NAME] = Office(dask_scheduler)
        for add in (_add_page, _add_metrics):
            try:
                add(dask_scheduler, office)
            except ImportError as error:
                _log.info("ostinato: the dashboard lacks %s", error.name)
    return _has_page(dask_scheduler, NAME)


def _has_page(scheduler: Any, name: str) -> bool:
    there = getattr(scheduler.http_application, "applications", ())
    return any(f"/{name}" in getattr(app, "app_paths", ()) for app in there)


def report(messages: dict[str, Any], dask_scheduler: Any) -> str:
    return panels.report(dask_scheduler.extensions[NAME].ledger, messages)


class _Metrics:
    """What Prometheus asks: the office of the last scheduler of this process."""

    office: Office | None = None

    def collect(self) -> Iterator[Any]:
        if self.office is not None:
            yield from self.office.metrics()


_metrics = _Metrics()


def _add_metrics(scheduler: Any, office: Office) -> None:
    from prometheus_client import REGISTRY

    if _metrics.office is None:
        REGISTRY.register(_metrics)
    _metrics.office = office


def _add_page(scheduler: Any, office: Office) -> None:
    """Another application beside Dask's own, with the same navigation."""
    from distributed.dashboard.core import BokehApplication
    from distributed.dashboard.scheduler import template_variables
    from tornado.ioloop import IOLoop

    if not _has_page(scheduler, "status"):
        return  # started without a dashboard
    variables = template_variables(scheduler)
    if NAME not in variables["pages"]:
        variables["pages"].insert(1, NAME)
    application = BokehApplication({f"/{NAME}": document}, scheduler, "", variables)
    scheduler.http_application.add_application(application)
    application.initialize(IOLoop.current())
    application.start()


def document(scheduler: Any, extra: dict[str, Any], doc: Any) -> None:
    """The page of one viewer."""
    from distributed.dashboard.components.scheduler import env

    view = _View(scheduler.extensions[NAME].ledger)
    view.update()
    doc.title = "Ostinato"
    doc.add_root(view.root)
    doc.template = env.get_template("simple.html")
    doc.template_variables.update(extra)
    doc.add_periodic_callback(view.update, EVERY)


class _View:
    def __init__(self, ledger: Ledger) -> None:
        from bokeh.layouts import column, row

        self.ledger = ledger
        self.facts = self._div()
        self.workers, self.memory, self.traffic = self._div(), self._div(), self._div()
        self.pipes = self._div()
        self.operations, self.timeline, self.picture = self._div(), self._div(), self._div()
        self.rates = self._rates()
        self.table = self._table()
        self.fed = column(self.pipes, **_CARD)
        title = self._div()
        title.text = panels.panel("Plans", "", "click one to see its operations and its graph")
        plans = column(title, self.table, **_CARD)
        rates = column(self.rates, **_CARD)
        self.root = column(
            self.facts,
            row(plans, rates, **_ROW),
            row(*(column(d, **_CARD) for d in (self.workers, self.memory, self.traffic)), **_ROW),
            self.fed,
            column(self.operations, self.timeline, **_CARD),
            column(self.picture, **_CARD),
            sizing_mode="stretch_width",
            spacing=14,
        )

    @staticmethod
    def _div() -> Any:
        from bokeh.models import Div

        return Div(text="", sizing_mode="stretch_width", stylesheets=[panels.STYLE])

    def _table(self) -> Any:
        from bokeh.models import ColumnDataSource, DataTable, HTMLTemplateFormatter, TableColumn

        self.source = ColumnDataSource({head: [] for head in panels.HEADS})
        left = HTMLTemplateFormatter(template="<%- value %>")
        right = HTMLTemplateFormatter(
            template='<div style="text-align:right;font-variant-numeric:tabular-nums"><%- value %></div>'
        )
        self.columns = [
            TableColumn(
                field=head,
                title=head,
                formatter=left if k < 2 else right,
                width=_WIDTHS[k],
                sortable=False,
            )
            for k, head in enumerate(panels.HEADS)
        ]
        self.source.selected.on_change("indices", lambda attr, old, new: self._choose())
        return DataTable(
            source=self.source,
            columns=self.columns,
            index_position=None,
            height=232,
            sizing_mode="stretch_width",
            stylesheets=[_TABLE],
        )

    def _rates(self) -> Any:
        from bokeh.models import ColumnDataSource, DatetimeTickFormatter, NumeralTickFormatter
        from bokeh.plotting import figure

        self.lines = ColumnDataSource({"x": [], "y": [], "colour": [], "name": []})
        made = figure(
            title="Runs per second",
            height=278,
            x_axis_type="datetime",
            sizing_mode="stretch_width",
            tools="",
            toolbar_location=None,
            background_fill_color=None,
            border_fill_color=None,
            outline_line_color=None,
        )
        made.multi_line(
            "x", "y", line_color="colour", line_width=2, legend_field="name", source=self.lines
        )
        made.title.text_font_size, made.title.text_color = "14px", "#1c2733"
        made.title.text_font = "system-ui, sans-serif"
        made.xgrid.visible = False
        made.ygrid.grid_line_color = "#eef1f4"
        made.y_range.start, made.y_range.only_visible = 0, True
        made.xaxis.formatter = DatetimeTickFormatter(
            seconds="%H:%M:%S", minsec="%H:%M:%S", minutes="%H:%M", hourmin="%H:%M"
        )
        made.yaxis.formatter = NumeralTickFormatter(format="0,0")
        for axis in (*made.xaxis, *made.yaxis):
            axis.axis_line_color = axis.minor_tick_line_color = None
            axis.major_tick_line_color, axis.major_label_text_color = "#d6dde4", "#5b6b7b"
        made.add_layout(made.legend[0], "above")
        made.legend.orientation, made.legend.location = "horizontal", "top_left"
        made.legend.border_line_color = made.legend.background_fill_color = None
        made.legend.label_text_font_size, made.legend.padding, made.legend.margin = "12px", 0, 0
        return made

    # -- updates ---------------------------------------------------------------------------
    def update(self) -> None:
        ledger = self.ledger
        for div, text in (
            (self.facts, panels.facts(ledger)),
            (self.workers, panels.workers(ledger)),
            (self.memory, panels.memory(ledger)),
            (self.traffic, panels.traffic(ledger)),
            (self.pipes, panels.pipes(ledger)),
        ):
            _say(div, text)
        if self.fed.visible != bool(ledger.pipes):
            self.fed.visible = not self.fed.visible
        rows = [panels.plan_row(ledger, plan) for plan in ledger.ran]
        columns = {h: [row[k] for row in rows] for k, h in enumerate(panels.HEADS)}
        if columns != self.source.data:
            self.source.data = columns
            self._show_again()
        if rows and not self.source.selected.indices:
            busiest = max(range(len(rows)), key=lambda k: self._spent(ledger.ran[k]))
            self.source.selected.indices = [busiest]
        self._choose()
        self._draw()

    def _show_again(self) -> None:
        """Bokeh's tables show other data of the same length only when something else changes, too:
        here the order in which nobody can sort them."""
        first = self.columns[0]
        first.default_sort = "descending" if first.default_sort == "ascending" else "ascending"

    def _spent(self, plan: str) -> float:
        total = self.ledger.total(plan)
        return total.runs * total.each

    def _choose(self) -> None:
        """Show the plan that was clicked."""
        chosen, ran = self.source.selected.indices, self.ledger.ran
        plan = ran[chosen[0]] if chosen and chosen[0] < len(ran) else ""
        _say(self.operations, panels.operations(self.ledger, plan))
        _say(self.timeline, panels.timeline(self.ledger, plan))
        _say(self.picture, panels.picture(self.ledger, plan))

    def _draw(self) -> None:
        points = list(self.ledger.history)
        times = [1000 * at for at, _ in points]
        shown = sorted(self.ledger.ran, key=self._spent, reverse=True)[: len(PALETTE)]
        order = {plan: k for k, plan in enumerate(self.ledger.ran)}
        shown.sort(key=order.__getitem__)
        self.lines.data = {
            "x": [times for _ in shown],
            "y": [[rates.get(plan, 0.0) for _, rates in points] for plan in shown],
            "colour": [PALETTE[order[plan] % len(PALETTE)] for plan in shown],
            "name": [f"{self.ledger.called(plan)} {plan[:8]}" for plan in shown],
        }


def _say(div: Any, text: str) -> None:
    if div.text != text:
        div.text = text


_WIDTHS = (80, 170, 80, 80, 80, 80, 60, 70, 70, 70)
_ROW: dict[str, Any] = {"sizing_mode": "stretch_width", "spacing": 14}
_CARD: dict[str, Any] = {
    "sizing_mode": "stretch_width",
    "stylesheets": [":host { align-self: stretch !important; }"],
    "styles": {
        "background": "#ffffff",
        "border": "1px solid #d6dde4",
        "border-radius": "8px",
        "padding": "12px 16px",
        "min-width": "0",
        "box-sizing": "border-box",
    },
}
_TABLE = """
:host { font: 13px/1.45 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
.slick-header-column { background: #fff; color: #5b6b7b; }
.slick-header-column:nth-child(n+3) { text-align: right; justify-content: flex-end; }
.slick-row.odd { background: #fff; }
.slick-cell { border-color: #f0f3f6; cursor: pointer; }
.slick-cell.selected { background: #e8eef6; }
"""
