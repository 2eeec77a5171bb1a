"""The settings of `redraft serve`: frozen and validated."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import ip_address

from redraft.checks import MAX_NUMBER, require_at_most
from redraft.engine.settings import EngineSettings
from redraft.errors import SettingError

_ORIGIN = re.compile(r"https?://[^\s/?#@A-Z]+")
LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")
SPARE_SECONDS = 5.0
"""How much longer than the request itself a client may take to read its answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeSettings:
    """Limits, access and logging of one server. Raises `SettingError` naming what is wrong.

    names           names that requests may use for the model; the first one is shown
    keys            API keys; if empty, no key is needed
    origins         web origins that may call from a browser (CORS); none by default
    max_body        most bytes of a request
    max_prompt      most tokens of a prompt; None for as many as the context holds
    max_open        most requests open at a time, including queued ones; one more gets a 429. At least this many
                    answers, or `engine.max_waiting` if that is more, may wait
    timeout         most seconds a request may take
    grace           seconds that open requests get to finish when the server is told to stop
    log_prompts     whether log lines hold the texts of requests and answers
    replica         number of this server's copy of the model; None if there is only one copy
    """

    names: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    max_body: int = 4 * 2**20
    max_prompt: int | None = None
    max_open: int = 256
    timeout: float = 600.0
    grace: float = 30.0
    log_prompts: bool = False
    replica: int | None = None
    engine: EngineSettings = field(default_factory=EngineSettings)

    def __post_init__(self) -> None:
        if not self.names or not all(self.names):
            raise SettingError("The model needs a name.")
        if len(set(self.names)) < len(self.names):
            raise SettingError(f"The names of the model are {', '.join(self.names)}; each may be given only once.")
        if not self.host:
            raise SettingError("host is empty; it must be an address, such as 0.0.0.0 for all interfaces.")
        if not 0 <= self.port <= 65535:
            raise SettingError(f"port is {self.port}; it must be between 0 and 65535.")
        for name in ("max_body", "max_open", "timeout"):
            if getattr(self, name) <= 0:
                raise SettingError(f"{name} is {getattr(self, name)}; it must be above 0.")
        if self.max_prompt is not None and self.max_prompt < 1:
            raise SettingError(f"max_prompt is {self.max_prompt}; it must be at least 1.")
        if self.grace < 0:
            raise SettingError(f"grace is {self.grace}; it must be at least 0.")
        require_at_most(
            MAX_NUMBER,
            max_body=self.max_body,
            max_prompt=self.max_prompt,
            max_open=self.max_open,
            timeout=self.timeout,
            grace=self.grace,
        )
        if wrong := [origin for origin in self.origins if origin != "*" and not _ORIGIN.fullmatch(origin)]:
            raise SettingError(
                f"The origin {wrong[0]!r} is not one that a browser sends; give '*', or one such as "
                "https://app.example, in lower case and with nothing after host and port."
            )

    def limit(self, asked: float | None) -> float:
        """The time limit of a request that asked for this many seconds, or for no limit."""
        return self.timeout if asked is None else min(asked, self.timeout)

    @property
    def reading_limit(self) -> float:
        """Most seconds from the beginning of an answer for which its client may read."""
        return self.timeout + SPARE_SECONDS

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"

    @property
    def local_names(self) -> tuple[str, ...]:
        """The names under which this machine knows a local server."""
        return tuple(dict.fromkeys((*LOCAL_HOSTS, self.host.lower())))
