"""A short version of `python -m tests.faults`: a few kills, corruptions and bad inputs, a few hundred files.

The long one is marked slow; `make faults` runs it with figures.
"""

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="the commands train")

from . import TESTS
from .corruptions import STATES, corrupt, plan_corruptions
from .files import plan_files, read_fuzzed
from .inputs import CASES, BadInput, lay_out, refuse
from .kills import Ground, Reference, draw_blow, kill_chain, plan_chains, plan_signals, send_signal
from .playground import STAGES, differing, fresh, results
from .record import Record
from .worker import INSIDE, Worker

#: Every n-th bad input here, for they take a third of a second each; all of them in the long version.
SHARE = 6


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    with Worker() as worker:
        made = Ground(worker, folder / "inputs", folder)
        made.make_inputs()
        yield made


@pytest.fixture(scope="module")
def bad_folder(ground):
    return lay_out(ground)


@pytest.mark.parametrize(("stage", "number"), [("noise fit", 1), ("train", 3)])
def test_a_killed_command_goes_on_to_the_same_results(ground, stage, number):
    case = kill_chain(ground, stage, number, n_kills=1)
    assert case["ok"], case
    assert len(case["blows"]) == 1


@pytest.mark.parametrize(("stage", "inside"), [("noise sample", ("sampling", 9)), ("train", ("training step", 15))])
def test_a_command_killed_inside_its_long_work_goes_on_to_the_same_results(ground, stage, inside):
    folder, reference = fresh(ground.inputs, ground.scratch / "inside"), ground.reference(stage)
    assert reference.calls[inside[0]] > inside[1]
    assert ground.worker.run(STAGES[stage], folder, kill_inside=inside).killed
    ended = ground.worker.run(STAGES[stage], folder)
    assert not ended.code, ended.said
    assert not differing(results(folder), reference.results)


def test_half_of_the_kills_fall_inside_training_and_sampling(ground):
    """By the plan of the long version: how its blows are drawn, without striking."""
    calls = {"run": (40, 60), "noise fit": (0, 0), "noise sample": (0, 60), "train": (40, 60), "benchmark": (40, 60)}
    drawn = []
    for stage, number, n_kills in plan_chains(50):
        reference = Reference(5.0, 100, dict(zip(INSIDE, calls[stage], strict=True)), {})
        rng = ground.rng(f"kills {stage} {number}")
        drawn += [draw_blow(rng, reference, forked=number > 0) for _ in range(n_kills)]
    inside = [blow["kill_inside"][0] for blow in drawn if "kill_inside" in blow]
    assert len(inside) >= 25
    assert all(inside.count(name) >= 8 for name in INSIDE)


def test_a_run_that_was_killed_while_it_wrote_its_first_file_goes_on(ground):
    folder = fresh(ground.inputs, ground.scratch / "first file")
    assert ground.worker.run(STAGES["train"], folder, kill_when="run/.fingerprints.json.*.part").killed
    assert not (folder / "run" / "fingerprints.json").exists()
    ended = ground.worker.run(STAGES["train"], folder, kill_when="cache/noise_lm/*.work")
    assert ended.killed, ended.said


def test_a_signal_stops_a_command_politely(ground):
    case = send_signal(ground, "noise fit", "SIGTERM", 0)
    assert case["ok"], case


@pytest.mark.parametrize(
    ("state", "kind", "damage"),
    [
        ("finished", "noise shard", "flip a bit"),
        ("finished", "model weights", "truncate"),
        ("finished", "config", "delete"),
        ("finished", "token ids", "garbage"),
        ("training", "checkpoint optimizer", "empty"),
    ],
)
def test_damage_is_named_and_made_again(ground, state, kind, damage):
    case = corrupt(ground, state, kind, damage)
    assert case["ok"], case


@pytest.mark.parametrize("bad", CASES[::SHARE], ids=lambda bad: bad.call[-60:])
def test_bad_input_is_refused_clearly(ground, bad_folder, bad):
    case = refuse(ground, bad_folder, bad)
    assert case["ok"], case


@pytest.mark.parametrize("reader", ["data", "predictions"])
def test_fuzzed_files_are_read_or_refused(tmp_path, reader):
    case = read_fuzzed(tmp_path, 1, reader, 0, 150)
    assert case["ok"], case["failed"]
    assert case["read"] > 0
    assert case["refused"] > 0


def test_a_call_that_is_not_refused_counts_as_a_failure(ground, bad_folder):
    assert "exit code 0" in refuse(ground, bad_folder, BadInput("tasks rte", ("nothing",)))["problem"]


def test_the_comparison_sees_what_differs():
    assert differing({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}) == ["b", "c"]


def test_plans_have_what_was_asked_for_and_nothing_twice():
    assert sum(kills for _, _, kills in plan_chains(52)) == 52
    assert {stage for stage, _, _ in plan_chains(52)} == set(STAGES)
    corruptions = plan_corruptions(100)
    assert len(set(corruptions)) == 100
    assert {(state, kind) for state, kind, _ in corruptions} == {(s, k) for s, kinds in STATES.items() for k in kinds}
    assert sum(count for _, _, count in plan_files(1001)) == 1001
    assert len({bad.key for bad in CASES}) == len(CASES) >= 100


def test_a_record_goes_on_with_the_same_code_and_is_dropped_with_other(tmp_path):
    path = tmp_path / "cases.jsonl"
    Record(path, {"code": "a"}).add({"part": "kills", "key": "one", "ok": True})
    with open(path, "a") as handle:
        handle.write('{"part": "kills", "key": "tw')  # cut off
    assert list(Record(path, {"code": "a"}).cases) == ["one"]
    assert Record(path, {"code": "b"}).cases == {}


@pytest.mark.slow
def test_all_of_it(tmp_path):
    command = [sys.executable, "-m", f"{TESTS.name}.faults", "--work", tmp_path, "--output", tmp_path / "faults.json"]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_stops_politely(ground, stage):
    for one in (one for one in plan_signals(1) if one[0] == stage):
        assert send_signal(ground, *one)["ok"]
