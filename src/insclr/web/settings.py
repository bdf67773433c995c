"""What `insclr serve` can be told."""

from dataclasses import dataclass

from insclr.errors import UserError

_LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class ServeSettings:
    """Where the page is served and what it accepts."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str = ""  # when given, every request must carry it
    max_bytes: int = 25_000_000  # of one request
    max_pixels: int = 64_000_000  # of one uploaded picture
    max_queries: int = 16  # pictures and rows of one query set

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UserError(f"port {self.port} does not exist: give one from 0 to 65535")
        if self.token and (len(self.token) < 8 or not self.token.isascii() or " " in self.token):
            raise UserError("a token needs at least 8 characters, ASCII without spaces")
        if self.max_bytes < 1 or self.max_pixels < 1:
            raise UserError("the limits of uploads must be positive")

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the page."""
        return self.host in _LOCAL

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names under which the page may be asked for: a foreign name is another site's doing (DNS rebinding)."""
        return _LOCAL if self.local else ("*",)

    @property
    def address(self) -> str:
        """What to open in a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/" + (f"?token={self.token}" if self.token else "")
