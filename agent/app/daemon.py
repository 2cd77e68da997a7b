"""The daemon: one event loop with the supervisor, the web server, reloads, the watchdog and an orderly stop."""

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent import __version__
from agent.app.config import Loaded, Options, load, read_config_in
from agent.app.discovery import ExporterPlan, exporter_names, prepare
from agent.app.front import STATIC, CachedAnswer, exporter_views, node_document
from agent.app.supervisor import Supervisor
from agent.app.web_terms import WebTerms, local_socket
from agent.app.yaml_document import ConfigError
from agent.core.checkpoint import StateFile
from agent.core.clock import Clock, LoopLag
from agent.core.log import Logger
from agent.core.systemd import Notifier, WatchdogGate, watchdog_interval_seconds
from agent.core.threads import OwnThread
from agent.export.agent_families import ExporterStatus, SelfSnapshot, self_source
from agent.export.exposition import Selection
from agent.export.registry import Registry, Source
from agent.page.front_page import SiteLinks, front_page
from agent.page.ranks_json import Configuration, NodeDocument, write
from agent.system.procfs import ProcFS
from agent.web.handlers import Pages
from agent.web.serving import Serving

SWITCH_INTERVAL_SECONDS = 0.001
"""A busy thread releases the interpreter after this time. With Python's default (5 ms) the event loop is 16 ms late."""
GC_THRESHOLDS = (20_000, 50, 100)
"""A full collection during a scrape of 50,000 series takes 40 ms with these thresholds, and 90 ms with the defaults."""
CONFIG_POLL_SECONDS = 5.0
SELF_RENDER_SECONDS = 10.0


class Daemon:
    """The daemon. ``run`` returns the process' exit status."""

    def __init__(
        self,
        options: Options,
        loaded: Loaded,
        environ: Mapping[str, str],
        terms: WebTerms | None = None,
        inherited: Sequence[socket.socket] = (),
    ) -> None:
        self._options = options
        self._loaded = loaded
        self._environ = environ
        self._clock = Clock()
        self._log = Logger("daemon")
        self._started_at = self._clock.monotonic()
        path = loaded.config.state.path
        boot_id = ProcFS(options.roots.proc).boot_id()
        self._state = StateFile(Path(path) if path else None, boot_id, Logger("checkpoint"))
        self._state.load()
        self._hostname = os.uname().nodename
        self._supervisor = Supervisor(self._clock, self._hostname, options.roots, self._state)
        self._self_source = self_source(self._self_snapshot)
        installed = frozenset(exporter_names())
        self._registry = Registry(self._sources, Logger("registry"), OwnThread("render"), installed)
        self._pages = Pages(
            self._registry.render,
            self._registry.names,
            self._ready,
            CachedAnswer(self._clock, self._page),
            CachedAnswer(self._clock, lambda: write(self._document())),
            self._supervisor.may_show,
            STATIC,
            self._supervisor.evidence_file,
        )
        self._terms = terms or WebTerms(None, self._clock, Logger("web"))
        self._web = Serving(self._pages, Logger("web"), lambda: self._terms.terms, inherited, local_socket(environ))
        self._lag = LoopLag(self._clock)
        self._notifier = Notifier(environ.get("NOTIFY_SOCKET"), Logger("notify"))
        self._gate = WatchdogGate(("supervisor", "render"), self._clock.monotonic)
        self._config_thread = OwnThread("config")
        self._reload_requested = asyncio.Event()
        self._stop_requested = asyncio.Event()
        self._refused = ""

    async def run(self, plan: ExporterPlan) -> int:
        """Run until SIGTERM or SIGINT."""
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_requested.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload_requested.set)
        try:
            await self._web.start(self._listen_addresses(self._loaded))
        except OSError as error:
            self._log.error("cannot serve metrics", error=error)
            return 1
        await self._supervisor.begin(plan)
        gc.set_threshold(*GC_THRESHOLDS)
        gc.freeze()  # objects made at the start live as long as the daemon: collections skip them
        status = await self._serve()
        self._log.info("stopping")
        self._notifier.send("STOPPING=1")
        await self._web.stop()
        await self._supervisor.stop()
        self._notifier.close()
        return status

    async def _serve(self) -> int:
        parts: list[Coroutine[Any, Any, object]] = [
            self._supervisor.run(lambda: self._gate.beat("supervisor")),
            self._reloads(),
            self._terms.watch(),
            self._stop_requested.wait(),
        ]
        self._lag.begin()
        if (path := self._options.config_path) is not None:
            parts.append(self._watch_config(path))
        interval = watchdog_interval_seconds(self._environ, os.getpid())
        if interval is not None:
            parts += [self._feed_watchdog(interval), self._self_render(interval)]
        tasks = [asyncio.create_task(part) for part in parts]
        self._notifier.send("READY=1")
        address = ", ".join(self._web.addresses)
        self._log.info("serving metrics at {address}", address=address, version=__version__)
        done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        failed = [error for task in done if (error := task.exception()) is not None]
        for error in failed:  # a task ended: this is a bug; exit, so that systemd restarts the agent
            self._log.error("a task of the agent failed, the agent ends", error=error)
        return 1 if failed else 0

    # -- reload ----------------------------------------------------------------------------------------------------

    async def _reloads(self) -> None:
        while True:
            await self._reload_requested.wait()
            self._reload_requested.clear()
            self._notifier.send(f"RELOADING=1\nMONOTONIC_USEC={int(self._clock.monotonic() * 1_000_000)}")
            try:
                await self._reload()
            except Exception as error:  # noqa: BLE001  # the agent keeps its configuration after any error
                self._refused = str(error) or type(error).__name__
                self._log.error(
                    "configuration refused, the previous one stays",
                    error=str(error) if isinstance(error, ConfigError) else error,
                )
            else:
                self._refused = ""
                self._log.info("configuration reloaded")
            self._notifier.send("READY=1")

    async def _reload(self) -> None:
        """Apply the configuration file as a whole; on any error raise the error and keep the old configuration."""
        path = self._options.config_path
        text = "" if path is None else await read_config_in(self._config_thread, path)
        loaded = await self._config_thread.call(lambda: load(self._options, text))
        plan = await self._config_thread.call(lambda: prepare(loaded, self._log))  # it can import exporters
        fixed = {
            "$.state": loaded.config.state == self._loaded.config.state,
            "$.web.config_file": self._options.web_file(loaded) == self._terms.path,
            "$.web.listen_address": self._listen_addresses(loaded) == self._listen_addresses(self._loaded),
        }
        for key, is_same in fixed.items():
            if not is_same:
                raise loaded.error(key, "cannot change while the agent runs: restart it")
        if not await self._supervisor.apply(plan):
            raise ConfigError("an exporter did not start")
        self._loaded = loaded

    async def _watch_config(self, path: Path) -> None:
        """Request a reload when the file's text changes; an unreadable file is reported only after SIGHUP."""
        known = self._loaded.text
        while True:
            await asyncio.sleep(CONFIG_POLL_SECONDS)
            try:
                text = await read_config_in(self._config_thread, path)
            except ConfigError:
                continue
            was_reverted = text == self._loaded.text and bool(self._refused)
            if text not in (known, self._loaded.text) or was_reverted:
                self._reload_requested.set()
            known = text

    # -- watchdog --------------------------------------------------------------------------------------------------

    async def _self_render(self, interval: float) -> None:
        while True:
            await self._registry.render(Selection(collect=frozenset({self._self_source.name})))
            self._gate.beat("render")
            await asyncio.sleep(min(SELF_RENDER_SECONDS, interval / 2))

    async def _feed_watchdog(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            if self._gate.may_feed():
                self._notifier.send("WATCHDOG=1")
            else:
                self._log.warning("systemd's watchdog is not notified, as tasks are late", missing=self._gate.missing())

    # -- what is shown ---------------------------------------------------------------------------------------------

    def _sources(self) -> Sequence[Source]:
        running = self._supervisor.running.values()
        return [self._self_source, *self._supervisor.tables, *(exporter.source for exporter in running)]

    def _ready(self) -> bool:
        return self._supervisor.may_show() and self._supervisor.ready()

    def _listen_addresses(self, loaded: Loaded) -> tuple[str, ...]:
        return self._options.listen_addresses or loaded.config.web.addresses

    def _self_snapshot(self) -> SelfSnapshot:
        exporters = tuple(running.status() for running in self._supervisor.running.values())
        broken = tuple(ExporterStatus(name, up=False, present=False) for name in sorted(self._supervisor.broken))
        return SelfSnapshot(
            age_seconds=self._clock.monotonic() - self._started_at,
            exporters=exporters + broken,
            counts={name: replace(counts) for name, counts in self._registry.counts.items()},
            refused=self._supervisor.series.refused,
            helpers={
                helper.spec.name: (helper.ok, dict(helper.calls))
                for helper in self._supervisor.helpers.all()
                if helper.ok is not None
            },
            loop_lag_seconds=self._lag.seconds(),
            reload_ok=not self._refused and not self._terms.refused,
            save_errors=self._state.save_errors,
        )

    def _page(self) -> str:
        web = self._loaded.config.web
        return front_page(self._document(), SiteLinks(web.dashboards, web.runbooks))

    def _document(self) -> NodeDocument:
        path = self._options.config_path
        running, broken = self._supervisor.running.values(), self._supervisor.broken
        return node_document(
            self._supervisor.health_snapshot(),
            self._supervisor.ranks.speeds,
            exporter_views(running, broken, self._registry.counts),
            self._hostname,
            up_seconds=self._clock.monotonic() - self._started_at,
            ready=self._ready(),
            configuration=Configuration(
                "" if path is None else str(path.absolute()), self._refused or self._terms.refused
            ),
        )
