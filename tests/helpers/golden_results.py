"""Golden results: what the commands give on two small collections. `python golden_results.py FILE` records them."""

import csv
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

RECIPES = ("fast", "default")
IMAGES_PER_INSTANCE = 15
INSTANCES = 20


def run_all(shared: Path, folder: Path) -> dict[str, Any]:
    """The golden results of both collections, made in `folder`."""
    products = _link_products(shared / "data" / "products60", folder / "products")
    drawn = folder / "drawn"
    _insclr("demo-data", drawn, "--things", 12, "--views", 10, "--size", 160)
    collections = {"products": products, "drawn": drawn}
    return {"cpu": cpu_name()} | {
        name: {recipe: _run_recipe(images, folder / f"{name}-{recipe}", recipe) for recipe in RECIPES}
        for name, images in collections.items()
    }


def cpu_name() -> str:
    """The processor: weights are equal bit by bit only on one kind."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _link_products(source: Path, folder: Path) -> Path:
    """20 instances with 15 images each, and their labels."""
    by_instance: dict[str, list[str]] = {}
    with (source / "labels.csv").open() as file:
        for row in csv.DictReader(file):
            by_instance.setdefault(row["instance"], []).append(row["path"])
    lines = ["path,instance"]
    for instance in sorted(by_instance)[:INSTANCES]:
        for path in sorted(by_instance[instance])[:IMAGES_PER_INSTANCE]:
            link = folder / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(source / path)
            lines.append(f"{path},{instance}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder


def _run_recipe(images: Path, out: Path, recipe: str) -> dict[str, Any]:
    run, store = out / "run", out / "store"
    _insclr("train", images, "--out", run, "--recipe", recipe)
    _insclr("index", run, images, "--store", store)
    _insclr("embed", run, images, "--out", out / "vectors.npz")
    _insclr("evaluate", run, "--labels", images / "labels.csv", "--json", out / "result.json")
    with (images / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    query = images / rows[0]["path"]
    found = {
        "weights": _digest_weights(run / "model.safetensors"),
        "evaluate": json.loads((out / "result.json").read_text()),
        "embed": _summary(np.load(out / "vectors.npz")),
        "search": _matches(json.loads(_insclr("search", store, query, "--top", 10, "--json"))),
        "diffusion": _matches(
            json.loads(_insclr("search", store, query, "--top", 10, "--json", "--rerank", "diffusion"))
        ),
        "http": _ask_server(store),
    }
    if recipe == "fast":
        names = out / "names.csv"
        named = [f"{row['path']},{row['instance']}" for row in rows if rows.index(row) % 3 == 0]
        names.write_text("path,name\n" + "\n".join(named) + "\n")
        _insclr("names", "import", store, names)
        _insclr("learn", store, "--out", out / "learned")
        found["learn"] = _digest_weights(out / "learned" / "run" / "model.safetensors")
    return found


def _digest_weights(file: Path) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(file).items()):
        digest.update(f"{name}{tensor.dtype}{tensor.shape}".encode())
        digest.update(np.ascontiguousarray(tensor).tobytes())
    return digest.hexdigest()


def _summary(arrays: Any) -> dict[str, Any]:
    """Each array of a descriptor file: its shape, and the first numbers of the mean row where it holds numbers."""
    found = {}
    for name in sorted(arrays.files):
        array = arrays[name]
        numbers = array.ndim == 2 and array.dtype.kind == "f"
        mean = [round(float(one), 4) for one in array.mean(0)[:8]] if numbers else []
        found[name] = {"shape": list(array.shape), "mean": mean}
    return found


def _matches(found: Any) -> list[list[Any]]:
    matches = found if isinstance(found, list) else found["matches"]
    return [[one["path"], round(one["similarity"], 3), round(one["score"], 2)] for one in matches]


def _ask_server(store: Path) -> dict[str, Any]:
    """What the HTTP API answers: about, a search by row, the first things, the first question."""
    command = [_program(), "serve", str(store), "--port", "8731"]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_env()
    ) as server:
        try:
            about = _get("/api/about", wait=60)
            row = _get("/api/stores/0/sample?count=1")
            things = _get("/api/stores/0/things")
            screen = _get("/api/stores/0/teach/screen")
            form = urllib.request.Request(
                "http://127.0.0.1:8731/api/search", data=_form(row=1), method="POST"
            )
            form.add_header("Content-Type", "multipart/form-data; boundary=golden")
            with urllib.request.urlopen(form, timeout=60) as answer:
                found = json.load(answer)
        finally:
            server.terminate()
            server.wait(timeout=20)
    return {
        "about": _shape(about),
        "sample": _shape(row),
        "things": _shape(things),
        "screen": _shape(screen),
    } | {"search": _shape(found)}


def _form(row: int) -> bytes:
    parts = {"rows": f"0:{row}", "top": "10"}
    body = "".join(
        f'--golden\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in parts.items()
    )
    return (body + "--golden--\r\n").encode()


def _get(path: str, wait: float = 0) -> Any:
    end = time.monotonic() + wait
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:8731{path}", timeout=60) as answer:
                return json.load(answer)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def _shape(value: Any) -> Any:
    """An answer without what differs between two machines: paths of folders, tokens, times; numbers rounded.

    The fingerprint of a model is left out too: it depends on the text of the recipe, beside the weights.
    """
    if isinstance(value, dict):
        return {
            key: _shape(one)
            for key, one in value.items()
            if key not in ("model", "folder", "title", "rerankers", "name", "milliseconds", "fingerprint")
        }
    if isinstance(value, list):
        return [_shape(one) for one in value[:12]]
    if isinstance(value, float):
        return round(value, 2)
    return re.sub(r"/[^ ]*/", "", value) if isinstance(value, str) else value


def _program() -> str:
    return str(Path(sys.executable).parent / "insclr")


def _env() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "2"}


def _insclr(*words: object) -> str:
    command = [_program(), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=_env(), check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    here = Path(__file__).resolve()
    with tempfile.TemporaryDirectory() as scratch:
        results = run_all(here.parents[3] / "shared", Path(scratch))
    Path(sys.argv[1]).write_text(json.dumps(results, indent=1) + "\n")
