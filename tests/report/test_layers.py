"""The report reads what a run folder offers: it never needs the code that trains."""

import subprocess
import sys

_CHECK = """
import sys
import insclr.report.cluster_sheets, insclr.report.comparison, insclr.report.run_report
print([name for name in sys.modules if name.startswith(("insclr.training", "insclr.methods"))])
"""


def test_no_page_imports_training_or_methods():
    done = subprocess.run([sys.executable, "-c", _CHECK], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
