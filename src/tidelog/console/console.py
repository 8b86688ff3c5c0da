"""The console's parts together, and what every page needs: the view, notices, rendering."""

import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse

from tidelog.admin.groups import Groups
from tidelog.admin.overview import Overview
from tidelog.admin.share_groups import ShareGroups
from tidelog.admin.snapshot import Snapshot, TopicView
from tidelog.admin.topics import topic_view
from tidelog.client.pipeline_places import state_directory
from tidelog.console.faults import NOT_FOUND, UNAVAILABLE, UNREACHABLE_HINT, ConsoleFault
from tidelog.console.kafka_changes import KafkaChanges
from tidelog.console.kafka_client import KafkaClient
from tidelog.console.login import ClusterCheck, FileCheck, Login, Session
from tidelog.console.protection import Token
from tidelog.console.record_reader import RecordReader
from tidelog.console.rendering import environment
from tidelog.console.schema_registry import SchemaRegistry
from tidelog.console.segment_files import SegmentFiles
from tidelog.console.share_watch import ShareWatch
from tidelog.console.tails import Tails
from tidelog.console.watcher import POLL_SECONDS, View, Watcher
from tidelog.console.wire_client import cluster_admin
from tidelog.schemas.registry_client import RegistryClient

NOTICES_MAX = 200
#: where a request keeps its session
SESSION = "tidelog.session"


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
    NavigationEntry("pipelines", "/pipelines", "Pipelines", "p"),
    NavigationEntry("schemas", "/schemas", "Schemas", "s"),
    NavigationEntry("brokers", "/brokers", "Brokers", "b"),
    NavigationEntry("transactions", "/transactions", "Transactions", "x"),
    NavigationEntry("access", "/access", "Access", "a"),
    NavigationEntry("events", "/events", "Events", "e"),
)


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """How a console is run."""

    bootstrap: str = "localhost:9092"
    properties: Mapping[str, str] | None = field(default=None, repr=False)
    read_only: bool = False
    #: who may log in with a password of the cluster, and as what (see `login`); None asks for no login
    login_roles: Mapping[str, str] | None = None
    #: people of the console's own, in place of the cluster's
    users_file: Path | None = None
    #: the address of a schema registry, and `name:password` for it
    registry: str | None = field(default=None, repr=False)
    registry_user_info: str = field(default="", repr=False)
    #: data folders of brokers on this machine that may be read, to show segments
    data_folders: tuple[Path, ...] = ()
    #: where pipelines of this machine say how they are
    pipelines_folder: Path = field(default_factory=state_directory)
    allowed_hosts: tuple[str, ...] = ()
    timeout_seconds: float = 10.0
    poll_seconds: float = POLL_SECONDS


class Console:
    """One console of one cluster."""

    def __init__(self, settings: ConsoleSettings) -> None:
        properties = dict(settings.properties or {})
        self.settings = settings
        self.client = KafkaClient(settings.bootstrap, properties, settings.timeout_seconds)
        self.wire = cluster_admin(settings.bootstrap, properties)
        self.changes = KafkaChanges(self.client, self.wire)
        self.groups = Groups(self.wire)
        self.shares = ShareGroups(self.wire)
        # The watcher has links of its own: pages do not wait for its looks, nor it for pages.
        self._watching = cluster_admin(settings.bootstrap, properties)
        overview = Overview(self._watching, f"the cluster at {settings.bootstrap} did not answer")
        watched_groups = Groups(self._watching)
        self.watcher = Watcher(
            self._watching,
            overview,
            watched_groups,
            ShareWatch(self._watching, watched_groups),
            settings.poll_seconds,
        )
        self.reader = RecordReader(self.client, self.wire)
        self.registry: RegistryClient | None = None
        self.schemas: SchemaRegistry | None = None
        if settings.registry is not None:
            place = settings.registry, settings.registry_user_info
            self.registry = RegistryClient(*place, settings.timeout_seconds)
            self.schemas = SchemaRegistry(*place)
        self.tails = Tails(self.client, self.schemas)
        self.segments = SegmentFiles(settings.data_folders)
        self.token = Token()
        self.closing = False
        self.login = _login(settings)
        #: schemas have a line where there is a registry
        self._navigation = tuple(
            entry for entry in NAVIGATION if entry.section != "schemas" or self.registry is not None
        )
        self.navigation = self._navigation
        self._templates = environment()
        self._notices: OrderedDict[str, tuple[str, str]] = OrderedDict()

    def extend(self, navigation: Sequence[NavigationEntry], template_folders: Sequence[Path]) -> None:
        """Add lines to the menu and folders of templates, once, before the first page."""
        self.navigation = (*self._navigation, *navigation)
        self._templates = environment(template_folders)

    def end_streams(self) -> None:
        """Let every open stream end: people who stop a console do not wait for them."""
        self.closing = True
        self.watcher.tell()
        self.tails.wake()

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
        found = topic_view(self.wire, name)
        if not found.partitions:
            raise ConsoleFault(f"there is no topic {name!r}", "It may have been deleted.", NOT_FOUND)
        return found

    # Who asks

    def session(self, request: Request) -> Session | None:
        """The login behind a request; None where nobody needs to log in."""
        found: Session | None = request.scope.get(SESSION)
        return found

    def still_in(self, request: Request) -> bool:
        """Whether a stream may go on: its login still holds, and the console is not about to end."""
        if self.closing:
            return False
        session = self.session(request)
        return session is None or self.login is None or self.login.sessions.holds(session)

    def may_change(self, request: Request) -> bool:
        """Whether this request may change anything; pages offer changes only then."""
        session = self.session(request)
        return not self.settings.read_only and (session is None or session.person.may_change)

    def form_token(self, request: Request) -> str:
        """What forms must carry: of the session, or of this process before and without a login."""
        session = self.session(request)
        return self.token.text if session is None else session.form_token

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
            read_only=not self.may_change(request),
            token=self.form_token(request),
            person=None if (session := self.session(request)) is None else session.person,
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


def _login(settings: ConsoleSettings) -> Login | None:
    if settings.users_file is not None:
        return Login(FileCheck(settings.users_file))
    if settings.login_roles is None:
        return None
    options = {**(settings.properties or {}), "bootstrap.servers": settings.bootstrap}
    return Login(ClusterCheck(options, settings.login_roles))
