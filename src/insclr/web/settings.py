"""The options of `insclr serve`."""

import io
import os
import re
import secrets
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from insclr.errors import UserError
from insclr.files import open_text
from insclr.options import StoreModelOptions, option

_LOCAL = ("127.0.0.1", "localhost", "::1")
_EVERY = ("0.0.0.0", "::", "")
TOKEN_VARIABLE = "INSCLR_TOKEN"


@dataclass(frozen=True, kw_only=True)
class ServeOptions(StoreModelOptions):
    """Where the page is served, to whom, and what it accepts."""

    host: str = option("127.0.0.1", "Address to listen on; 0.0.0.0 listens on all interfaces.")
    port: int = option(8000, "Port to listen on.")
    token: str = ""  # every request must carry it; else from the file, made, or from the environment
    token_file: Path | None = option(None, "File with the token that every request must carry.")
    make_token: bool = option(False, "Make a token and print it once, in the address.")
    insecure: bool = option(False, "Serve other machines without a token.")
    root_path: str = option("", "Path under which a proxy shows the page, such as /photos.")
    names: tuple[str, ...] = option((), "Host name of the page, such as a proxy's.", "--name")
    proxy: str = option("", "Trusted proxy address, whose X-Forwarded headers are used.")
    originals: bool = option(True, "Let people open and download the files themselves, with all camera data.")

    max_bytes: int = 25_000_000  # of one request
    max_pixels: int = 64_000_000  # of one uploaded picture
    max_request_pixels: int = 100_000_000  # of all pictures of one request
    max_queries: int = 16  # pictures and rows of one query set
    max_server_bytes: int = 150_000_000  # of all requests that are being received or answered
    max_uploads: int = 4  # requests with pictures that are answered at once
    max_previews: int = 8  # thumbnails and large pictures that are made at once: others wait
    decoders: int = 2  # processes that decode pictures
    decode_seconds: float = 10.0  # for one picture
    body_seconds: float = 60.0  # for the body of a request to arrive
    header_seconds: float = 10.0  # for the head of a request to arrive
    write_seconds: float = 30.0  # that a client may leave an answer unread
    wrong_token_seconds: float = 0.2  # between answers to wrong tokens, of all clients together
    max_connections: int = 500  # of one address half as many

    def __post_init__(self) -> None:
        """Find the token; UserError for a value that makes no sense."""
        super().__post_init__()
        object.__setattr__(self, "names", tuple(one.lower() for one in self.names))
        object.__setattr__(self, "token", self.token or find_token(self.token_file, self.make_token))
        if not 0 <= self.port <= 65535:
            raise UserError(f"port {self.port} does not exist: give one from 0 to 65535")
        if self.token and not re.fullmatch(r"[!-~]{8,}", self.token):
            raise UserError("a token needs at least 8 characters, ASCII without spaces")
        if self.max_bytes < 1 or self.max_pixels < 1:
            raise UserError("the limits of uploads must be positive")
        if self.root_path and not (self.root_path.startswith("/") and self.root_path[-1] != "/"):
            raise UserError(
                f"the root path {self.root_path!r} must begin with / and not end with it: /photos"
            )
        if not self.local and not self.token and not self.insecure:
            raise UserError(
                f"--host {self.host} lets everybody in the network see these photos: give a token (--token-file, "
                f"--make-token or the variable {TOKEN_VARIABLE}), or give --insecure"
            )

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the page."""
        return self.host in _LOCAL

    @property
    def only_here(self) -> bool:
        """Whether the page is for this machine alone, without a proxy that shows it to others."""
        return self.local and not (self.names or self.proxy or self.root_path)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names under which the page may be asked for: another name may be an attack (DNS rebinding)."""
        return (*_LOCAL, *self.names) if self.local or self.names else ("*",)

    @property
    def address(self) -> str:
        """What to open in a browser, without the token: where all interfaces are meant, that of the local network."""
        host = _lan_host(self.host) if self.host in _EVERY else self.host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}/"

    @property
    def announcement(self) -> str:
        """What to open, for people; for other devices, a QR code for their cameras too."""
        # Only a token that nobody has seen yet is shown.
        query = f"?token={self.token}" if self.make_token else "?token=..." if self.token else ""
        lines = [f"open {self.address}{query} (Ctrl-C stops it)"]
        if not self.local and sys.stdout.isatty():
            lines.insert(0, draw_qr_code(self.address + (query if self.make_token else "")))
        return "\n".join(lines)


def draw_qr_code(address: str) -> str:
    """The address as a QR code of block characters."""
    import segno

    written = io.StringIO()
    segno.make(address, error="l").terminal(out=written, compact=True)
    return written.getvalue()


def _lan_host(every: str) -> str:
    """The address of this machine in its network; where there is none, the given one."""
    family, far = (socket.AF_INET6, "2001:db8::1") if ":" in every else (socket.AF_INET, "192.0.2.1")
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((far, 9))  # chooses the interface and sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "::1" if ":" in every else "127.0.0.1"


def find_token(file: Path | None, make: bool) -> str:
    """The token from a file, the environment, or a new one; empty without any of them."""
    if file is not None:
        try:
            with open_text(file) as text:
                token = text.read(1000).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"the token file {file} cannot be read: {error}") from error
        if not token:
            raise UserError(f"the token file {file} is empty: write a token of 8 characters or more into it")
        return token
    if make:
        return secrets.token_urlsafe(24)
    return os.environ.get(TOKEN_VARIABLE, "")
