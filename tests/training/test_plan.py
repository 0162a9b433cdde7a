"""The training plan: what stands at each position, for one process, several, and a resumed run."""

from collections import Counter

import numpy as np
import pytest
from torch.utils.data import BatchSampler, SequentialSampler

from ebmcal.config import RunConfig
from ebmcal.models.tokens import TokenTable
from ebmcal.noise.supply import Stored
from ebmcal.training.plan import Collator, Draw, Shuffled, Step, TrainingPlan, plan_of


def make_plan(**changes):
    settings = {"n_rows": 10, "n_steps": 12, "batch_size": 4, "noise_ratio": 3, "seed": 5}
    return TrainingPlan(**settings | changes)


def steps_of(plan):
    return [plan[p] for p in range(len(plan))]


def test_every_row_once_an_epoch_each_epoch_in_another_order():
    rows = [step.row for step in steps_of(make_plan(n_steps=10))]
    epochs = [rows[i : i + 10] for i in range(0, 40, 10)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def numbers_of(plan):
    return [number for step in steps_of(plan) for number in step.noise]


def test_draws_are_numbered_through_the_run():
    plan = make_plan()
    assert numbers_of(plan) == list(range(12 * 4 * 3))
    assert plan.n_noise_draws == 12 * 4 * 3


def drawn_from(plan, n_texts):
    return [
        int(draw.tokens[0][0])
        for draw in Stored("infill", make_table(np.arange(n_texts)[:, None]), 5).draw(numbers_of(plan))
    ]


def test_no_stored_text_twice_until_all_were_used():
    assert sorted(drawn_from(make_plan(), 144)) == list(range(144))


def test_repeats_of_stored_texts_are_even():
    drawn = drawn_from(make_plan(), 50)
    assert len(drawn) == 144
    assert set(Counter(drawn).values()) == {2, 3}
    assert sorted(drawn[:50]) == sorted(drawn[50:100]) == list(range(50))


def test_a_start_on_cross_entropy_alone():
    plan = make_plan(noise_start=0.5)
    with_noise = [bool(step.noise) for step in steps_of(plan)]
    assert with_noise == [False] * 24 + [True] * 24
    assert plan.n_noise_draws == 24 * 3
    assert numbers_of(plan) == list(range(24 * 3))


def test_noise_in_every_third_step():
    plan = make_plan(noise_start=0.25, noise_every=3)
    with_noise = [step for step in range(12) if plan[4 * step].noise]
    assert with_noise == [3, 6, 9]
    assert [step for step in range(12) if plan.has_noise(step)] == with_noise
    # Skipped steps use up no noise: the draws are the first ones of a plan with noise in every step.
    assert plan.n_noise_draws == 3 * 4 * 3
    assert numbers_of(plan) == list(range(3 * 4 * 3))


def test_a_method_without_noise():
    plan = make_plan(noise_ratio=0)
    assert not any(step.noise for step in steps_of(plan))
    assert plan.n_noise_draws == 0


def test_methods_of_one_seed_see_the_same_rows():
    assert [s.row for s in steps_of(make_plan(noise_ratio=0))] == [s.row for s in steps_of(make_plan())]


def test_a_position_depends_on_seed_and_position_only():
    """Read in any order, from any point on: a resumed run is the rest of the uninterrupted one."""
    in_order = steps_of(make_plan())
    backwards = make_plan()
    assert [backwards[p] for p in reversed(range(48))][::-1] == in_order
    assert make_plan()[31] == in_order[31]
    assert steps_of(make_plan(seed=6)) != in_order


@pytest.mark.parametrize("n_processes", [2, 4])
def test_processes_share_the_batches_of_one(n_processes):
    """As accelerate deals the batches of a `Trainer` out: step by step, the union is the batch of one process."""
    shards = pytest.importorskip("accelerate.data_loader").BatchSamplerShard
    plan, one = make_plan(noise_start=0.25, noise_every=2), steps_of(make_plan(noise_start=0.25, noise_every=2))
    batches = BatchSampler(SequentialSampler(plan), 4 // n_processes, drop_last=False)
    seen = [[[plan[p] for p in batch] for batch in shards(batches, n_processes, i)] for i in range(n_processes)]
    assert all(len(batches) == 12 for batches in seen)
    for step, parts in enumerate(zip(*seen, strict=True)):
        assert [item for part in parts for item in part] == one[4 * step : 4 * step + 4]
        assert len({bool(item.noise) for part in parts for item in part}) == 1


def test_shuffled_counts_its_rounds():
    numbers = Shuffled(4, seed=1)
    assert sorted(numbers[i] for i in range(4)) == sorted(numbers[i] for i in range(4, 8)) == [0, 1, 2, 3]
    assert [numbers.round(i) for i in (0, 3, 4, 11)] == [0, 0, 1, 2]


def make_table(texts):
    offsets = np.cumsum([0] + [len(t) for t in texts])
    flat = np.concatenate(texts).astype(np.int32)
    return TokenTable(flat, (flat % 2).astype(np.uint8), offsets, 0)


class Supply:
    """Number n gives the text of n in a table, of source n modulo 2; odd ones were made of two rows."""

    names = ("a", "b")

    def __init__(self, table):
        self.table = table

    def draw(self, numbers):
        return [Draw(n % 2, self.table[n], (0, 1, 0.25) if n % 2 else None) for n in numbers]


def test_the_collator_puts_data_first_and_labels_noise_by_its_source():
    data, noise = make_table([[1, 2], [3]]), make_table([[4], [5, 6, 7], [8]])
    batch = Collator(data, np.array([1, 0]), Supply(noise))([Step(1, (2, 1)), Step(0, (0, 0))])
    assert [ids.tolist() for ids in batch["ids"]] == [[3], [1, 2], [8], [5, 6, 7], [4], [4]]
    assert [types.tolist() for types in batch["types"]] == [[1], [1, 0], [0], [1, 0, 1], [0], [0]]
    assert batch["labels"].tolist() == [0, 1, -1, -2, -1, -1]
    assert batch["labels"].dtype == np.int64


def test_the_collator_knows_the_labels_that_noise_was_made_of():
    data, noise = make_table([[1, 2], [3]]), make_table([[4], [5, 6, 7], [8]])
    batch = Collator(data, np.array([1, 0]), Supply(noise))([Step(1, (2, 1)), Step(0, (0, 0))])
    none = [-1, -1, -1]
    assert batch["mixed"].tolist() == [none, none, none, [1, 0, 0.25], none, none]


def test_the_collator_without_noise():
    batch = Collator(make_table([[1, 2], [3]]), np.array([1, 0]), None)([Step(1, ()), Step(0, ())])
    assert batch["labels"].tolist() == [0, 1]
    assert (batch["mixed"] == -1).all()
    assert batch["mixed"].shape == (2, 3)


def test_the_plan_of_a_config():
    config = RunConfig(steps=12, batch_size=4, noise_ratio=3, noise_start=0.25, noise_every=3)
    assert steps_of(plan_of(config, 10, seed=5)) == steps_of(make_plan(noise_start=0.25, noise_every=3))
    assert steps_of(plan_of(config, 10, seed=5, with_noise=False)) == steps_of(make_plan(noise_ratio=0))
