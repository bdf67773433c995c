"""Things that were not there in training."""

import subprocess
import sys
from pathlib import Path

import pytest

from insclr_demo import draw_collection

_BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "inductive.py"


@pytest.mark.slow
def test_unseen_instances_are_found_better_than_by_the_pretrained_network(tmp_path: Path) -> None:
    draw_collection(tmp_path / "drawn", things=60, views=16, seed=3)
    command = [sys.executable, str(_BENCHMARK), str(tmp_path / "drawn" / "labels.csv")]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "half")], capture_output=True, text=True, check=True
    )
    lines = [line.rsplit(maxsplit=1) for line in done.stdout.splitlines()[1:]]
    found = {name.strip(): float(value) for name, value in lines}
    assert found["trained (fast)"] > found["pretrained"] + 2
