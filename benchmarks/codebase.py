"""The size of the codebase: lines and files a package, wide functions, and the files that three walks touch.

`python benchmarks/codebase.py [SRC]` prints the tables. A walk runs a real command on a small drawn collection and
records every file of the package whose code runs between two events: the first decoded image until the first step of
the optimizer, the first decoded image until the store is whole, a request of the page until its answer.
Code that runs while a module is imported does not count.
A change of package is a call from a file of one package into a file of another; each pair of files counts once.
"""

import ast
import collections
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

WIDE = 8  # parameters

_TRACE = """
import inspect, json, os, sys, threading
root, out = sys.argv[1], sys.argv[2]
sys.path.insert(0, root)
files, edges, on, begin = set(), set(), [], ""
def package(name):
    return name.split(os.sep)[0] if os.sep in name else ""
def ours(frame):
    return frame.f_code.co_filename.startswith(root + "/insclr/")
def is_body(frame):  # of a module or a class: what it runs, such as a decorator, is no part of the way
    return not frame.f_code.co_flags & inspect.CO_NEWLOCALS
def trace(frame, event, _):
    if event != "call" or not ours(frame):
        return
    callers, above = [], frame
    while above:
        if ours(above):
            callers.append(above)
        above = above.f_back
    if any(map(is_body, callers)):
        return
    callee = frame.f_code.co_filename[len(root + "/insclr/"):]
    if callee == begin:
        on.append(True)
    if begin and not on:
        return
    files.add(callee)
    if len(callers) > 1:
        before = callers[1].f_code.co_filename[len(root + "/insclr/"):]
        if package(before) != package(callee):
            edges.add((before, callee))
def start():
    threading.setprofile(trace)
    sys.setprofile(trace)
def stop():
    sys.setprofile(None)
    threading.setprofile(None)
    json.dump({"files": sorted(files), "edges": sorted(edges)}, open(out, "w"))
"""

_TRAIN = (
    _TRACE
    + """
import torch, insclr
from torch.optim import Optimizer
for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
    def step(self, *args, _step=kind.step, **named):
        stop()
        os._exit(0)
    kind.step = step
begin = "data/decode.py"
start()
insclr.train(sys.argv[3], sys.argv[4], "default", engine="torch", changes=("workers=0", "guard=false"))
"""
)

_INDEX = (
    _TRACE
    + """
import insclr
begin = "data/decode.py"
start()
insclr.index("pretrained:efficientnet_lite0", sys.argv[3], sys.argv[4])
stop()
"""
)

_WEB = (
    _TRACE
    + """
import insclr, uvicorn
from fastapi.testclient import TestClient
from insclr.cli import main
insclr.index("pretrained:efficientnet_lite0", sys.argv[3], sys.argv[4])
from pathlib import Path
photo = next(Path(sys.argv[3]).rglob("*.jpg"))
def run(self, sockets=None):
    start()
    with TestClient(self.config.app, base_url="http://127.0.0.1") as client:
        answer = client.post("/api/search", files={"pictures": photo.read_bytes()})
    stop()
    assert answer.status_code == 200, answer.text
    os._exit(0)
uvicorn.Server.run = run
sys.argv[1:] = ["serve", sys.argv[4], "--port", "0"]
main()
"""
)

_WALKS = {"training image -> gradient": _TRAIN, "image -> store": _INDEX, "request -> answer": _WEB}


def count_package(folder: Path) -> tuple[int, int]:
    """Files and lines of a package."""
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]
    return len(files), sum(len(file.read_text().splitlines()) for file in files)


def find_wide_functions(source: Path) -> list[tuple[int, str]]:
    """Functions with eight or more parameters."""
    found = []
    for file in sorted(source.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                count = sum(one.arg not in ("self", "cls") for one in named)
                if count >= WIDE:
                    found.append((count, f"{file.relative_to(source.parent)}:{node.lineno} {node.name}"))
    return sorted(found, reverse=True)


def walk(source: Path, code: str, folder: Path) -> tuple[int, int]:
    """Files and changes of package on the way of an image through the program."""
    images, out = folder / "images", folder / "trace.json"
    made = [
        sys.executable,
        "-m",
        "insclr",
        "demo-data",
        str(images),
        "--things",
        "6",
        "--views",
        "6",
        "--size",
        "96",
    ]
    env = os.environ | {"PYTHONPATH": str(source), "INSCLR_CACHE": str(folder / "cache")}
    subprocess.run(made, check=True, env=env, capture_output=True)
    command = [sys.executable, "-c", code, str(source), str(out), str(images), str(folder / "out")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if not out.exists():
        raise RuntimeError(done.stderr[-2000:])
    found = json.loads(out.read_text())
    return len(found["files"]), len(found["edges"])


def main() -> None:
    """Print the tables of a source folder, the one beside this file if none is given."""
    source = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "src").resolve()
    package = source / "insclr"
    total = collections.Counter[str]()
    print("| package | files | lines |\n|---|---|---|")
    for entry in sorted(package.iterdir()):
        if entry.name == "__pycache__" or not (entry.is_dir() or entry.suffix == ".py"):
            continue
        files, lines = count_package(entry)
        total["files"] += files
        total["lines"] += lines
        if entry.is_dir() and files:
            print(f"| {entry.name} | {files} | {lines:,} |")
    print(f"| **insclr** | **{total['files']}** | **{total['lines']:,}** |")
    for beside in ("insclr_rivals", "insclr_demo"):
        if (source / beside).is_dir():
            files, lines = count_package(source / beside)
            print(f"| {beside} | {files} | {lines:,} |")
    print(f"\nfunctions with {WIDE} or more parameters: {len(find_wide_functions(package))}")
    names = collections.Counter(file.name for file in package.rglob("*.py") if file.name != "__init__.py")
    print(f"file names that occur twice: {sum(count > 1 for count in names.values())}")
    print("\n| walk | files | changes of package |\n|---|---|---|")
    for name, code in _WALKS.items():
        with tempfile.TemporaryDirectory() as scratch:
            files, changes = walk(source, code, Path(scratch))
        print(f"| {name} | {files} | {changes} |")


if __name__ == "__main__":
    main()
