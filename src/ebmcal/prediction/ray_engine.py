"""Bulk prediction on a Ray cluster through Ray Data: every actor loads the model once and predicts chunks.

The driver reads the input, hands chunks to `map_batches` and writes the results in order, so the output is the same as
that of one process, and a killed driver resumes. Ray restarts an actor that dies and repeats its chunk. The model
directory must be available under the same path on all nodes. With this engine the whole input is read before the first
chunk is computed; chunks wait in Ray's object store, which spills to disk.
"""

import contextlib
import logging
import pickle
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebmcal.errors import EbmcalError
from ebmcal.prediction.chunks import Chunk, OutputChunk
from ebmcal.prediction.ensemble import Ensemble

if TYPE_CHECKING:
    from ebmcal.prediction.chunk_predictor import ChunkPredictor
    from ebmcal.prediction.columns import OutputColumns
    from ebmcal.prediction.job import Engine
    from ebmcal.selective import AbstentionRule

#: How often a chunk is repeated after its actor died: a text that crashes every actor ends the job.
MAX_RETRIES = 3


@dataclass(frozen=True)
class Job:
    """What an actor needs to build the `ChunkPredictor` of the driver."""

    members: tuple[tuple[str, Any, Any], ...]  # directory, calibrator, abstention rule
    mc_dropout: int | None  # None: not an ensemble
    columns: "OutputColumns"
    rule: "AbstentionRule | None"
    calibrated: bool

    @classmethod
    def of(cls, predict: "ChunkPredictor") -> "Job":
        model = predict.model
        members = model.members if isinstance(model, Ensemble) else [model]
        return cls(
            tuple((str(member.folder.resolve()), member.calibrator, member.fitted_rule) for member in members),
            model.mc_dropout if isinstance(model, Ensemble) else None,
            predict.columns, predict.rule, predict.calibrated,
        )  # fmt: skip


class ChunkActor:
    """Runs in a worker process, with one thread; the model is loaded for the first chunk and kept."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.predict: ChunkPredictor | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        (chunk,) = batch["chunk"]
        try:
            self.predict = self.predict or _build(self.job)
            result: OutputChunk | EbmcalError = self.predict(pickle.loads(chunk))
        except EbmcalError as error:  # raised by the driver; Ray would retry it
            result = error
        return {"chunk": [pickle.dumps(result)]}


def _build(job: Job) -> "ChunkPredictor":
    import torch

    from ebmcal.prediction.chunk_predictor import ChunkPredictor

    torch.set_num_threads(1)
    members = [_load(*member) for member in job.members]
    model = members[0] if job.mc_dropout is None else Ensemble(members, job.mc_dropout)
    return ChunkPredictor(model, job.columns, job.rule, job.calibrated)


def _load(folder: str, calibrator: Any, rule: Any) -> Any:
    from ebmcal.model import load

    if not Path(folder).is_dir():
        raise EbmcalError(
            f"A Ray worker on {socket.gethostname()} finds no model in {folder}. Put the model on a file system that "
            "all nodes share."
        )
    return replace(load(folder), calibrator=calibrator, fitted_rule=rule)


@contextlib.contextmanager
def ray_engine(predict: "ChunkPredictor", workers: int | None, address: str | None) -> "Iterator[Engine]":
    """An engine that runs chunks on the cluster at `address`, or on one that is started here for this job."""
    from ebmcal.noise.ray import ray_cluster

    with ray_cluster(address, workers) as n_workers:
        yield lambda chunks: _map_chunks(chunks, Job.of(predict), n_workers)


def _map_chunks(chunks: Iterator[Chunk], job: Job, n_workers: int) -> Iterator[OutputChunk]:
    import pyarrow as pa
    import ray

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    context.execution_options.preserve_order = True
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    blocks = [ray.put(pa.table({"chunk": pa.array([pickle.dumps(chunk)], pa.large_binary())})) for chunk in chunks]
    if not blocks:
        return
    results = ray.data.from_arrow_refs(blocks).map_batches(
        ChunkActor,
        fn_constructor_args=(job,),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(n_workers, len(blocks))),
        num_cpus=1,
        num_gpus=1 if ray.cluster_resources().get("GPU") else 0,
        max_restarts=-1,
        max_task_retries=MAX_RETRIES,
    )
    try:
        for row in results.iter_rows():
            found = pickle.loads(row["chunk"])
            if isinstance(found, EbmcalError):
                raise found
            yield found
    except ray.exceptions.RayError as error:
        raise EbmcalError(
            f"Ray stopped the job: {_first_line(error)} Finished chunks are kept; run the same command again to "
            "continue."
        ) from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:300]
