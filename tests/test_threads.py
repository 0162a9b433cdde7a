"""OpenMP settings: no spinning next to busy processes, threads within a quota, never against the user's settings."""

import pytest

from ebmcal import configure_threads, cpu_quota, is_machine_busy


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


@pytest.mark.parametrize(("running", "cores", "is_busy"), [(1, 2, False), (2, 2, True), (3, 16, False), (6, 16, True)])
def test_a_busy_machine(running, cores, is_busy, tmp_path, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    (tmp_path / "loadavg").write_text(f"0.52 0.58 0.59 {running}/467 12345\n")
    assert is_machine_busy(tmp_path / "loadavg") == is_busy
    assert not is_machine_busy(tmp_path / "missing")


@pytest.mark.parametrize("is_busy", [False, True])
def test_threads_sleep_next_to_others_and_fit_the_quota_unless_the_user_chose(is_busy, tmp_path, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("ebmcal.is_machine_busy", lambda: is_busy)
    (tmp_path / "cpu.max").write_text("200000 100000")
    found, chosen = {}, {"OMP_NUM_THREADS": "5", "OMP_WAIT_POLICY": "active"}
    configure_threads(found, tmp_path)
    configure_threads(chosen, tmp_path)
    cache = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "8"}
    waiting = {"GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"} if is_busy else {}
    assert found == waiting | {"OMP_NUM_THREADS": "2"} | cache
    assert chosen == {"OMP_NUM_THREADS": "5", "OMP_WAIT_POLICY": "active"} | cache
