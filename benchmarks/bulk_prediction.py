"""Throughput of bulk prediction: `ebmcal predict` on a CSV file and other ways to use the same weights.

    python benchmarks/bulk_prediction.py                    # 100,000 texts on two threads, about half an hour
    python benchmarks/bulk_prediction.py --rows 2000

MiniLM with a new head; texts have the lengths of SST-2 (or are lines of --texts FILE). One after the other, in one
process: ebmcal from file to file in float32 and, if the CPU is faster with it, in bfloat16,
`transformers.pipeline(batch_size=32)`, a loop over batches of 32 sorted by length, ONNX int8, and Ray with two
one-thread workers. Ratios are ebmcal's throughput relative to the others.
"""

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import numpy as np
import torch

import ebmcal
from ebmcal import bulk_prediction
from ebmcal.modeling.precision import use_bf16
from ebmcal.progress import Reporter
from timing import draw_texts, publish

BATCH_SIZE, THREADS = 32, 2


def make_texts(n: int) -> list[str]:
    """Random words, with the lengths of SST-2's phrases in tokens."""
    rng = np.random.default_rng(0)
    words = ["film", "story", "dull", "honest", "wonderful", "slow", "acting", "worth", "never", "joy", "the"]
    return [" ".join(rng.choice(words, size=max(1, len(tokens) - 2))) for tokens in draw_texts(n)]


def save_model(folder: Path) -> None:
    from ebmcal.modeling.pretrained import load_encoder, load_tokenizer

    torch.manual_seed(0)
    load_encoder("minilm", ("negative", "positive")).save_pretrained(folder)
    load_tokenizer("minilm").save_pretrained(folder)


class Stopwatch(Reporter):
    """When the first and the last chunk of a job were finished."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[tuple[float, int]] = []

    def stage(self, title, total=None):
        import contextlib

        return contextlib.nullcontext(lambda n=1, note="": self.times.append((time.perf_counter(), n)))

    def rows_per_second(self) -> float:
        """Without starting up: the rows after the first chunk, over the time since it."""
        (start, first), (stop, _) = self.times[0], self.times[-1]
        rows = sum(n for _, n in self.times) - first
        return rows / (stop - start) if stop > start else float("nan")


def run_ebmcal(model: Path, source: Path, output: Path, precision: str = "fp32", **options) -> tuple[np.ndarray, float]:
    watch = Stopwatch()
    bulk_prediction.make_reporter = lambda progress: watch
    ebmcal.predict_file(ebmcal.load(model, precision=precision), source, output, **options)
    return ebmcal.Predictions.read(output, labels_required=False).probs, watch.rows_per_second()


def run_pipeline(model: Path, texts: list[str]) -> np.ndarray:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

    stock = AutoModelForSequenceClassification.from_pretrained(model)
    classify = pipeline("text-classification", model=stock, tokenizer=AutoTokenizer.from_pretrained(model), top_k=None)
    found = classify(texts, batch_size=BATCH_SIZE, truncation=True)
    return np.array(
        [[{s["label"]: s["score"] for s in scores}[name] for name in ("negative", "positive")] for scores in found]
    )


def run_sorted_loop(model: Path, texts: list[str]) -> np.ndarray:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    stock, tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(model).eval(),
        AutoTokenizer.from_pretrained(model),
    )
    encoded = tokenizer(texts, truncation=True)
    order = np.argsort([len(ids) for ids in encoded["input_ids"]], kind="stable")
    found = np.empty((len(texts), 2))
    with torch.inference_mode():
        for start in range(0, len(texts), BATCH_SIZE):
            rows = order[start : start + BATCH_SIZE]
            batch = tokenizer.pad(
                {key: [values[i] for i in rows] for key, values in encoded.items()}, return_tensors="pt"
            )
            found[rows] = stock(**batch).logits.softmax(dim=-1).numpy()
    return found


def run_int8(directory: Path, texts: list[str]) -> np.ndarray:
    from ebmcal.export.onnx import INT8, OnnxSession
    from ebmcal.predictions import softmax

    os.environ["OMP_NUM_THREADS"] = str(THREADS)
    return softmax(OnnxSession(directory, INT8).predict(texts)["logits"])


def measure(rows: int, file: Path | None, with_ray: bool) -> list[dict]:
    torch.set_num_threads(THREADS)
    texts = make_texts(rows) if file is None else file.read_text(encoding="utf-8").splitlines()[:rows]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        save_model(place / "model")
        (place / "in.csv").write_text("text\n" + "".join(f"{text}\n" for text in texts))
        (place / "warm_up.csv").write_text("text\n" + "".join(f"{text}\n" for text in texts[:200]))
        ebmcal.export_onnx(place / "model", place / "onnx", int8=True, data=texts[:200], progress=False)
        run_ebmcal(place / "model", place / "warm_up.csv", place / "warm_up_out.csv")
        found: dict[str, tuple[np.ndarray, float]] = {}

        def timed(title: str, function: Callable[[], np.ndarray]) -> None:
            start = time.perf_counter()
            probs = function()
            found[title] = probs, len(texts) / (time.perf_counter() - start)
            print(f"{title}: {found[title][1]:,.0f} texts/s", flush=True)

        model, source = place / "model", place / "in.csv"
        rates = {}

        def predict(title: str, **options) -> np.ndarray:
            probs, rates[title] = run_ebmcal(model, source, place / f"{title}.csv", **options)
            return probs

        timed("ebmcal", lambda: predict("ebmcal"))
        if use_bf16("auto"):
            timed("ebmcal, bf16", lambda: predict("ebmcal, bf16", precision="bf16"))
        timed(f"pipeline(batch_size={BATCH_SIZE})", lambda: run_pipeline(model, texts))
        timed("length-sorted loop", lambda: run_sorted_loop(model, texts))
        timed("ONNX int8", lambda: run_int8(place / "onnx", texts))
        if with_ray:
            timed("Ray", lambda: predict("Ray", engine="ray", workers=2))
    return summarize(found, rates, len(texts))


def summarize(found: dict[str, tuple[np.ndarray, float]], rates: dict[str, float], n_texts: int) -> list[dict]:
    """One row per ratio, with the texts per second behind it and the largest difference of the probabilities."""
    goals = {f"pipeline(batch_size={BATCH_SIZE})": 4.0, "length-sorted loop": 1.0, "ONNX int8": None}
    about = {"rows": n_texts, "threads": THREADS, "cpu": platform.processor() or platform.machine()}
    rows = []
    for name in [title for title in found if title.startswith("ebmcal")]:
        ours, throughput = found[name]
        command = "ebmcal predict" + (" --precision bf16" if name.endswith("bf16") else "")
        for title, goal in goals.items():
            probs, rate = found[title]
            rows.append({
                "name": f"{command} / {title}", "ratio": round(throughput / rate, 2), "goal": goal,
                "reference": f"{rate:,.0f} texts/s; ebmcal {throughput:,.0f} texts/s",
                "max_difference": float(np.abs(probs - ours).max()), **about,
            })  # fmt: skip
    if "Ray" in found:
        (probs, rate), (ours, throughput) = found["Ray"], found["ebmcal"]
        rows.append({
            "name": "Ray, two workers / one two-thread process", "ratio": round(rates["Ray"] / rates["ebmcal"], 2),
            "goal": 0.9, "reference": f"{rate:,.0f} texts/s; ebmcal {throughput:,.0f} texts/s",
            "ratio_with_startup": round(rate / throughput, 2),
            "max_difference": float(np.abs(probs - ours).max()), **about,
        })  # fmt: skip
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--texts", type=Path, help="one text per line")
    parser.add_argument("--no-ray", action="store_true")
    options = parser.parse_args()
    publish("bulk_prediction", measure(options.rows, options.texts, not options.no_ray))
