"""The console's parts together, and what every page needs: the view, notices, rendering."""

import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse

from tidelog.console.faults import NOT_FOUND, UNAVAILABLE, UNREACHABLE_HINT, ConsoleFault
from tidelog.console.group_client import GroupClient
from tidelog.console.kafka_changes import KafkaChanges
from tidelog.console.kafka_client import KafkaClient
from tidelog.console.protection import Token
from tidelog.console.record_reader import RecordReader
from tidelog.console.rendering import environment
from tidelog.console.snapshot import Snapshot, TopicView
from tidelog.console.tails import Tails
from tidelog.console.watcher import POLL_SECONDS, View, Watcher
from tidelog.console.wire_client import WireClient

NOTICES_MAX = 200


class NavigationEntry(NamedTuple):
    """A line of the menu; `key` after g goes there."""

    section: str
    link: str
    label: str
    key: str


NAVIGATION = (
    NavigationEntry("overview", "/", "Overview", "o"),
    NavigationEntry("topics", "/topics", "Topics", "t"),
    NavigationEntry("groups", "/groups", "Groups", "g"),
    NavigationEntry("brokers", "/brokers", "Brokers", "b"),
    NavigationEntry("transactions", "/transactions", "Transactions", "x"),
    NavigationEntry("access", "/access", "Access", "a"),
    NavigationEntry("events", "/events", "Events", "e"),
)


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """How a console is run."""

    bootstrap: str = "localhost:9092"
    properties: Mapping[str, str] | None = None
    read_only: bool = False
    allowed_hosts: tuple[str, ...] = ()
    timeout_seconds: float = 10.0
    poll_seconds: float = POLL_SECONDS


class Console:
    """One console of one cluster."""

    def __init__(self, settings: ConsoleSettings) -> None:
        properties = dict(settings.properties or {})
        self.settings = settings
        self.client = KafkaClient(settings.bootstrap, properties, settings.timeout_seconds)
        self.changes = KafkaChanges(self.client)
        self.wire = WireClient(settings.bootstrap, properties)
        self.groups = GroupClient(self.wire)
        # The watcher has links of its own: pages do not wait for its looks, nor it for pages.
        self._watching = WireClient(settings.bootstrap, properties)
        self.watcher = Watcher(
            self.client, self._watching, GroupClient(self._watching), settings.poll_seconds
        )
        self.reader = RecordReader(self.client)
        self.tails = Tails(self.client)
        self.token = Token()
        self.navigation: tuple[NavigationEntry, ...] = NAVIGATION
        self._templates = environment()
        self._notices: OrderedDict[str, tuple[str, str]] = OrderedDict()

    def extend(self, navigation: Sequence[NavigationEntry], template_folders: Sequence[Path]) -> None:
        """Add lines to the menu and folders of templates, once, before the first page."""
        self.navigation = (*NAVIGATION, *navigation)
        self._templates = environment(template_folders)

    def close(self) -> None:
        self.watcher.stop()
        self.tails.close()
        self.wire.close()
        self._watching.close()

    @property
    def view(self) -> View:
        """What was seen last; the first caller waits for the first look."""
        if self.watcher.view.version == 0:
            self.watcher.look()
        return self.watcher.view

    def snapshot(self) -> Snapshot:
        """The last snapshot; ConsoleFault where there never was one."""
        view = self.view
        if view.snapshot is None:
            raise view.fault or ConsoleFault("the cluster was not seen yet", UNREACHABLE_HINT, UNAVAILABLE)
        return view.snapshot

    def topic(self, name: str) -> TopicView:
        """A topic of the last snapshot, or asked for now if it is too new for that."""
        known = self.snapshot().topics.get(name)
        if known is not None:
            return known
        found = self.client.topic(name)
        if not found.partitions:
            raise ConsoleFault(f"there is no topic {name!r}", "It may have been deleted.", NOT_FOUND)
        return found

    # Pages

    def page(
        self, request: Request, template: str, section: str, title: str, *, status: int = 200, **context: Any
    ) -> HTMLResponse:
        """A page from its template, inside the frame."""
        view = self.watcher.view
        text = self._templates.get_template(template).render(
            section=section,
            title=title,
            navigation=self.navigation,
            bootstrap=self.settings.bootstrap,
            read_only=self.settings.read_only,
            token=self.token.text,
            view=view,
            stale=view.fault if view.snapshot is not None else None,
            notice=self._notices.get(request.query_params.get("notice", "")),
            now=time.time(),
            path=request.url.path,
            **context,
        )
        return HTMLResponse(text, status)

    def done(self, where: str, text: str, kind: str = "good") -> RedirectResponse:
        """Go to a page that says what was done; the text stays here, so that no link can forge one."""
        number = secrets.token_urlsafe(6)
        self._notices[number] = (kind, text)
        while len(self._notices) > NOTICES_MAX:
            self._notices.popitem(last=False)
        self.watcher.hurry()
        joiner = "&" if "?" in where else "?"
        return RedirectResponse(f"{where}{joiner}notice={number}", 303)
