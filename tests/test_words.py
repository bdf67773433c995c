"""Plain English: the terms of the field instead of private vocabulary, verbs for functions, no file name twice."""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
# What is banned everywhere: in code, comments, messages, the page, the docs and the names of tests.
BANNED = {
    r"strangers?": "random pairs",
    r"(dis|un)?believ\w*": "trusted, untrusted",
    r"doubted": "untrusted",
    r"bears? each other out|bear out": "consistent, inconsistent",
    r"knobs?": "setting",
    r"by heart": "overfit",
    r"rooms|(its|own|each|every|one|another|this) room|a room with": "package",
    r"(one|by|its|own|every|each) trade": "responsibility",
    r"spoken": "has_feedback",
    r"taught(?!\.safetensors|\"\))": "with feedback",
    r"hears?|heard": "reads, receives",
    r"says|speaks|forgets": "reports, records, prints, drops",
    r"(is|are|was|were|be|been|being) told(?! (apart|from))": "reports, records",
    r"(one|two|three|first|second|\d) looks?|looks (at|into|through)": "view, views; sees, reads",
    r"looked at": "read, checked, examined",
    r"slow cop(y|ies)|inertia": "EMA teacher, its decay",
    r"starv(e|es|ed|ing)|floods?|flooded": "too few, too many",
    r"strays?": "unassigned",
    r"labels in sight|in sight of (the )?labels": "chosen using labels",
    r"things that were not there": "unseen instances",
    r"what ships|as it ships": "shipped",
    r"a thing of its own": "a new thing",
    r"turns of layers": "alternating rounds",
    r"made_durable": "assign_permanent_id",
    r"KeptParts": "LocalFeatureDatabase",
    r"a first walk": "Tutorial",
    r"names out and in": "Export and import names",
    r"small things, and proof": "Small objects and local evidence",
    r"the campaign": "stress tests",
    r"others than this machine": "all interfaces",
    r"settling the store": "building the index",
    r"what was written is whole|goes on from there": "Files written so far are intact. Run the same command ...",
}
# What is banned in names of the code alone: people may say things, and everyone may use the page.
BANNED_NAMES = {
    r"said": "feedback",
    r"everyone": "global_batch",
}
# Words that a drawn scene needs.
_EXEMPT = {"src/insclr_demo": {"package"}}
_PARTICIPLE = re.compile(
    r"(?!embed$|exceed$|feed$|need$|seed$|speed$)[a-z]*ed"
    r"|begun|bound|broken|brought|built|caught|chosen|done|drawn|felt|found|given|gone|grown|heard|held|hidden|kept|known"
    r"|laid|left|lost|made|met|paid|said|seen|sent|shown|spent|spoken|taken|taught|thrown|told|understood|written"
)


def _compiled(table: dict[str, str]) -> list[tuple[re.Pattern[str], str]]:
    """Whole words, where an underscore parts words too."""
    return [
        (re.compile(rf"(?<![a-z])(?:{words})(?![a-z])".replace(" ", r"\s+"), re.IGNORECASE), instead)
        for words, instead in table.items()
    ]


_TEXT, _NAMES = _compiled(BANNED), _compiled(BANNED_NAMES)


def _files() -> Iterator[Path]:
    for kind in ("py", "toml", "html", "js", "css"):
        yield from sorted((_ROOT / "src").rglob(f"*.{kind}"))
    yield from sorted((_ROOT / "docs").rglob("*.md"))
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        yield _ROOT / name


def _names_in(file: Path, text: str) -> str:
    """The identifiers of a Python file, or all that a file of the page holds."""
    if file.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        return "\n".join(token.string for token in tokens if token.type == tokenize.NAME)
    return text if file.suffix in (".js", ".css", ".html") else ""


def find_banned(file: Path) -> list[str]:
    """A line for each banned use in the file or its name."""
    path = file.relative_to(_ROOT).as_posix()
    exempt = next((words for folder, words in _EXEMPT.items() if path.startswith(folder)), set())
    text = file.read_text(encoding="utf-8")
    found: list[str] = []
    for patterns, searched in (
        (_TEXT, f"{file.name}\n{text}"),
        (_NAMES, f"{file.name}\n{_names_in(file, text)}"),
    ):
        for pattern, instead in patterns:
            uses = Counter(match[0] for match in pattern.finditer(searched) if instead not in exempt)
            found += [f"{path}: {word!r} x {count}; say {instead!r}" for word, count in uses.items()]
    return found


def test_no_banned_word_is_left() -> None:
    found = [use for file in _files() for use in find_banned(file)]
    assert not found, "\n".join(found)


def test_names_of_tests_are_plain_too() -> None:
    found = []
    for file in sorted((_ROOT / "tests").rglob("*.py")):
        path = file.relative_to(_ROOT).as_posix()
        names = re.findall(r"^(?:async )?def (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
        text = "\n".join([file.stem, *names]).replace("_", " ")
        found += [f"{path}: {m[0]!r}; say {say!r}" for pattern, say in _TEXT for m in pattern.finditer(text)]
    assert not found, "\n".join(found)


def is_participle(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function's name is one bare participle, such as `_kept`. A property may have such a name."""
    if any("property" in ast.unparse(decorator) for decorator in function.decorator_list):
        return False
    return _PARTICIPLE.fullmatch(function.name.strip("_")) is not None


def test_functions_have_verbs() -> None:
    found = []
    for file in sorted((_ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_participle(node):
                found.append(f"{file.relative_to(_ROOT)}: {node.name}")
    assert not found, "\n".join(found)


def test_no_file_name_twice() -> None:
    names = Counter(
        file.name for file in (_ROOT / "src" / "insclr").rglob("*.py") if file.name != "__init__.py"
    )
    assert not [name for name, count in names.items() if count > 1]


@pytest.mark.parametrize("text", ["the knob", "said_state", "KNOB = 1", "a slow\ncopy", "the page says so"])
def test_the_patterns_find_words_and_parts_of_names(text: str) -> None:
    assert any(pattern.search(text) for pattern, _ in _TEXT + _NAMES)


@pytest.mark.parametrize(
    "text", ["doorknobs", "make room for it", "the strayed", "look at the report", "told apart"]
)
def test_the_patterns_leave_other_words_alone(text: str) -> None:
    assert not any(pattern.search(text) for pattern, _ in _TEXT)
