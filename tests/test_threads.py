"""OpenMP settings: fewer spins, threads within a container's quota, never against the user's own settings."""

import subprocess
import sys

import pytest

from ebmcal import SPIN_COUNT, configure_threads, cpu_quota


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.max": "garbage"}, None),
        ({}, None),
    ],
)
def test_the_quota_of_a_container(tmp_path, files, expected):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert cpu_quota(tmp_path) == expected


def test_threads_fit_the_quota_unless_the_user_chose_them(tmp_path, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    (tmp_path / "cpu.max").write_text("200000 100000")
    found, chosen = {}, {"OMP_NUM_THREADS": "5", "OMP_WAIT_POLICY": "active"}
    configure_threads(found, tmp_path)
    configure_threads(chosen, tmp_path)
    cache = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "8"}
    assert found == {"GOMP_SPINCOUNT": str(SPIN_COUNT), "KMP_BLOCKTIME": "1", "OMP_NUM_THREADS": "2"} | cache
    assert chosen == {"OMP_NUM_THREADS": "5", "OMP_WAIT_POLICY": "active"} | cache


def test_importing_ebmcal_sets_it_before_torch_is_loaded():
    script = "import sys, os, ebmcal; print(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.split() == [str(SPIN_COUNT), "False"]
