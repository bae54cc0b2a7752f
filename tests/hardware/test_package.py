"""What the package may import and what its data may hold."""

import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.hardware import figures
from meshwright.hardware.catalog import known_clusters
from meshwright.hardware.cluster import parse_cluster

DATA = sorted(figures.DATA.rglob("*.yaml"))


def test_hardware_imports_neither_numpy_nor_anything_above_it():
    code = (
        "import sys, meshwright.hardware.catalog, meshwright.hardware.cluster\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('numpy', 'ortools', 'rich')"
        " or m.startswith(('meshwright.costmodel', 'meshwright.optimizer', 'meshwright.search'))]\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("path", DATA, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_data_files_name_no_place_on_a_disk(path: Path):
    text = path.read_text(encoding="utf-8")
    assert not any(word in text for word in ("/home/", "/root/", "/tmp/", "/work/", "file://"))


def test_reference_systems_parse_under_the_name_they_are_listed_by():
    assert len(known_clusters()) >= 15
    for known in known_clusters():
        assert parse_cluster(known.cluster).name == known.cluster
        assert known.source


def test_modules_stay_short():
    for path in figures.DATA.parent.glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, path.name
