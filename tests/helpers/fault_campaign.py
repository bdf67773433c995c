"""A command with one fault after the other. What was tried is kept in build/faults: a stopped campaign goes on."""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from helpers.faults import ERRORS, KINDS, Ended, Fault, FaultyProcess

ROOT = Path(__file__).parents[2]
Arguments = tuple[str | Path, ...]


def _code() -> str:
    """A digest of the package and of the harness: results are of one state of the code."""
    files = [*(ROOT / "src" / "insclr").rglob("*.py"), *(ROOT / "tests" / "helpers").glob("fault*")]
    content = b"".join(file.read_bytes() for file in sorted(files))
    return hashlib.sha256(content).hexdigest()


@dataclass
class Campaign:
    """One command, of which each call fails once, or some of them."""

    name: str
    process: FaultyProcess
    folder: Path
    prepare: Callable[[], Arguments]  # clears the folder; the command to run there
    require_whole: Callable[[Ended], object]  # after a fault
    require_equal: Callable[[], object]  # after the command has ended with 0
    resumed: Callable[[Arguments], Arguments] = lambda arguments: arguments  # how the command is repeated
    calls: dict[str, int] = field(default_factory=dict)  # by kind
    found: dict[str, tuple[int, str]] = field(default_factory=dict)  # exit status and what is wrong, by fault

    def run(self, most: int | None) -> str:
        """Let every call fail with one of its errors, or `most` calls by chance; gives the result in a line."""
        file = self._file(most)
        faults = [
            Fault(kind, number, ERRORS[kind][number % len(ERRORS[kind])])
            for kind in KINDS
            for number in range(1, self.calls[kind] + 1)
        ]
        if most is not None and most < len(faults):
            faults = random.Random(0).sample(faults, most)
        with file.open("a") as kept:
            for fault in faults:
                if str(fault) not in self.found:
                    self._inject(fault)
                    print(json.dumps([str(fault), *self.found[str(fault)]]), file=kept, flush=True)
        wrong = [f"{fault}: {said}" for fault, (_, said) in self.found.items() if said]
        assert not wrong, f"{len(wrong)} of {len(faults)} faults\n" + "\n\n".join(wrong)
        statuses = Counter(status for status, _ in self.found.values())
        ended = ", ".join(f"{count} ended with {status}" for status, count in sorted(statuses.items()))
        return (
            f"{len(faults)} faults in {sum(self.calls.values())} calls: {ended}; 0 tracebacks, 0 lost, equal"
        )

    def _file(self, most: int | None) -> Path:
        """Where results are kept; those of this code are read."""
        file = ROOT / "build" / "faults" / f"{self.name}-{'all' if most is None else most}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        (code, self.calls), *kept = map(json.loads, file.open()) if file.exists() else [("", {})]
        if code == _code():
            self.found = {fault: (status, said) for fault, status, said in kept}
        else:
            self.calls = self.process.run(self.folder, Fault(), *self.prepare()).calls
            file.write_text(f"{json.dumps([_code(), self.calls])}\n")
        return file

    def _inject(self, fault: Fault) -> None:
        arguments = self.prepare()
        ended = self.process.run(self.folder, fault, *arguments)
        try:
            require_sentence(ended)
            self.require_whole(ended)
            if ended.status == 0 and _holds(self.require_equal):
                said = ""
            else:
                again = self.process.run(self.folder, Fault(), *self.resumed(arguments))
                assert again.status == 0, f"repeated: {again.said}"
                self.require_equal()
                said = ""
        except Exception as error:
            said = f"{type(error).__name__} {error}"
            said = said if len(said) < 2000 else f"{said[:500]} [...] {said[-1500:]}"
        self.found[str(fault)] = ended.status, said


def _holds(require: Callable[[], object]) -> bool:
    try:
        require()
    except Exception:
        return False
    return True


def require_sentence(ended: Ended) -> None:
    """0, or 2 with one sentence that does not give up the store."""
    said = f"{ended.status} {ended.said}"
    assert ended.status in (0, 2), said
    assert "Traceback" not in ended.said, said
    lines = [line for line in ended.said.splitlines() if line.startswith("insclr: ")]
    assert len(lines) == (ended.status == 2), said
    assert "is damaged" not in ended.said, said
