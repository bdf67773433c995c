"""Ground-truth pickles are read without running anything."""

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from insclr.errors import UserError
from insclr_rivals.safe_pickle import load_pickle


class Runs:
    """Unpickling this would write a file."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (eval, (f"open({str(self.target)!r}, 'w')",))


def written(folder, content, protocol=pickle.HIGHEST_PROTOCOL):
    file = folder / "truth.pkl"
    file.write_bytes(pickle.dumps(content, protocol=protocol))
    return file


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_and_arrays_come_through(tmp_path, protocol):
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    content = {
        "a": [1, 2.5, "text", None, True],
        "b": array,
        "c": np.float32(2),
        "d": (b"\x00\xff", np.array(["x"])),
    }
    loaded: Any = load_pickle(written(tmp_path, content, protocol))
    assert loaded["a"] == content["a"]
    assert np.array_equal(loaded["b"], array)
    assert loaded["b"].dtype == array.dtype
    assert loaded["c"] == 2
    assert loaded["d"][0] == b"\x00\xff"
    assert loaded["d"][1].tolist() == ["x"]


@pytest.mark.parametrize("core", [b"numpy.core", b"numpy._core"])
def test_arrays_of_either_numpy_generation(tmp_path, core):
    raw = pickle.dumps(np.arange(3), protocol=2)
    raw = raw.replace(b"numpy._core", core).replace(b"numpy.core", core)
    (tmp_path / "truth.pkl").write_bytes(raw)
    assert load_pickle(tmp_path / "truth.pkl").tolist() == [0, 1, 2]  # type: ignore[attr-defined]


def test_python_2_strings_are_latin_1(tmp_path):
    file = tmp_path / "truth.pkl"
    file.write_bytes(b"\x80\x02U\x04caf\xe9q\x00.")  # pickle.dumps('caf\xe9', 2) of Python 2
    assert load_pickle(file) == "café"


def test_a_pickle_that_would_run_something_is_refused_and_runs_nothing(tmp_path):
    target = tmp_path / "hacked"
    with pytest.raises(UserError, match=r"asks for (__builtin__|builtins)\.eval"):
        load_pickle(written(tmp_path, {"gnd": Runs(target)}))
    assert not target.exists()


@pytest.mark.parametrize(
    "payload",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"csubprocess\nPopen\n(S'true'\ntR.",
        b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\n_reconstruct.__globals__\n.",
        b"c_codecs\nencode\n(Vx\nVrot13\ntR.",
        b"ccollections\nOrderedDict\n.",
    ],
)
def test_everything_outside_the_list_is_refused(tmp_path, payload):
    (tmp_path / "truth.pkl").write_bytes(payload)
    with pytest.raises(UserError, match="refused"):
        load_pickle(tmp_path / "truth.pkl")


@pytest.mark.parametrize(
    "payload", [b"", b"no pickle", b"\x80\x04]", b"}q\x00(X", pickle.dumps([1] * 99)[:-5]]
)
def test_damaged_files_are_explained(tmp_path, payload):
    (tmp_path / "truth.pkl").write_bytes(payload)
    with pytest.raises(UserError, match="not a whole pickle"):
        load_pickle(tmp_path / "truth.pkl")


def test_a_missing_file_is_explained(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        load_pickle(tmp_path / "none.pkl")


def test_the_attack_is_real():
    """The standard unpickler does run the payload: the refusal above is what prevents it."""
    code = "import pickle; pickle.loads(b\"cbuiltins\\nprint\\n(S'run'\\ntR.\")"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "run"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 3), np.float64),
        np.array(7, np.uint8),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(3, dtype=">i4"),
        np.array([True, False]),
        np.array([1 + 2j]),
        np.array(["é", "longer"]),
        np.array([b"x", b"yz"]),
        np.array([None, [1, 2], "text", np.arange(2)], dtype=object),
    ],
    ids=lambda array: f"{array.dtype.kind}{array.ndim}",
)
def test_arrays_of_every_kind_are_those_that_were_written(tmp_path, array, protocol):
    loaded: Any = load_pickle(written(tmp_path, [array], protocol))
    (loaded,) = loaded
    by_numpy = pickle.loads(
        pickle.dumps(array, protocol)
    )  # older protocols swap bytes to the machine's order
    assert (loaded.dtype, loaded.shape) == (by_numpy.dtype, array.shape)
    assert repr(loaded.tolist()).replace("_Array", "array") == repr(array.tolist())


@pytest.mark.parametrize(("old", "new"), [(b"K\x03", b"K\x7f"), (b"\x00" * 8, b"\x00" * 7), (b"i8", b"O8")])
def test_an_array_whose_parts_do_not_fit_is_refused(tmp_path, old, new):
    raw = pickle.dumps(np.arange(3), protocol=2)
    assert old in raw
    (tmp_path / "truth.pkl").write_bytes(raw.replace(old, new, 1))
    with pytest.raises(UserError):
        load_pickle(tmp_path / "truth.pkl")


@pytest.mark.parametrize(
    "payload",
    [b"\x80\x02K\x01r\x00\x00\x00\x20.", b"K\x01p536870912\n."],
    ids=["a far place", "a far place in letters"],
)
def test_a_few_bytes_do_not_take_gigabytes(tmp_path, payload):
    (tmp_path / "truth.pkl").write_bytes(payload)
    code = (
        "import pathlib, re, sys\nfrom insclr.errors import UserError\n"
        "from insclr_rivals.safe_pickle import load_pickle\n"
        "try:\n    load_pickle(sys.argv[1])\nexcept UserError as error:\n    print(error)\n"
        "print(re.search(r'VmHWM:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1])"
    )
    said, peak = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "truth.pkl"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert "not a whole pickle" in said
    assert int(peak) < 2_000_000  # in kB: the room alone would be 8 GB


def test_what_refers_to_itself_a_billion_times_is_read_once(tmp_path):
    nested: list[Any] = [np.arange(2)]
    for _ in range(60):
        nested = [nested, nested]
    loaded: Any = load_pickle(written(tmp_path, nested))
    while len(loaded) == 2:
        assert loaded[0] is loaded[1]
        loaded = loaded[0]
    assert loaded[0].tolist() == [0, 1]
