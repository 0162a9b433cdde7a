"""Peak memory of a whole `ebmcal run` against the number of training rows; flat is what is wanted.

    python benchmarks/run_memory.py [--rows 10000 100000 1000000]

Each size runs the command in a process of its own: reading, tokens, noise LM, noise, training, predictions, report.
Training and noise are a few steps, whatever the rows, and encoder and noise LM are tiny: what is measured is what grows
with the data. Private memory is what the process asked for; resident memory also counts pages of memory-mapped files,
which the system may take back at any time. Stages are told apart by the run's own log. Writes `run_memory.json`.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from data_memory import WORDS, write_rows

HERE = Path(__file__).parent


def save_encoder(folder: Path) -> None:
    """A BERT of 2 layers and 64 units with a small vocabulary; weights are random, from seed 0."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    pieces = [*marks, *letters, *(f"##{letter}" for letter in letters), *WORDS[2:]]
    backend = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    BertForSequenceClassification(BertConfig(vocab_size=len(pieces), **shape)).save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_max_length=512,
    ).save_pretrained(folder)  # fmt: skip


def save_noise_lm(folder: Path) -> None:
    """A GPT-2 of 2 layers and 64 units with random weights from seed 0, but for a push that lets it end its gaps."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    from ebmcal.noise.lm import add_markers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    end, alphabet = "<|endoftext|>", pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(special_tokens=[end], initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([" ".join(WORDS)] * 2, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=end, pad_token=end)
    torch.manual_seed(0)
    shape = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 256, "bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **shape))
    markers = add_markers(model, tokenizer)
    with torch.no_grad():
        end = model.transformer.wte.weight[markers.end]
        model.transformer.ln_f.bias += 4 * end / end.norm() ** 2
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def command(data: Path, models: Path, folder: Path) -> list[str]:
    """The run: one method with noise, everything that does not depend on the rows kept small."""
    settings = {
        "train": data, "encoder": models / "encoder", "noise-lm": models / "lm", "noise-mode": "gaps",
        "methods": "hidden", "steps": 8, "eval-steps": 8, "save-steps": 8,
        "batch-size": 16, "noise-samples": 64, "samples-per-mask": 1,
        "noise-lm-steps": 2, "max-eval-rows": 500, "train-prediction-rows": 500, "max-length": 48,
        "output": folder / "run", "cache-dir": folder / "cache",
    }  # fmt: skip
    return [sys.executable, "-m", "ebmcal", "run", *(str(x) for k, v in settings.items() for x in (f"--{k}", v))]


def memory_mb(pid: int, field: str) -> float:
    """A field of a process's memory status in MB: RssAnon is private, VmHWM the resident peak; 0 when it has ended."""
    try:
        found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found.group(1)) / 1024 if found else 0.0


def tree(pid: int) -> list[int]:
    """A process and all that it started."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return [pid, *(p for child in children for p in tree(int(child)))]


def stage_of(log: Path) -> str:
    """What the run is at: the beginning of the last line of its log, without the time and without paths."""
    lines = log.read_text().splitlines() if log.exists() else []
    return _title(lines[-1][20:]) if lines else "start and data"


def _title(line: str) -> str:
    return " ".join(word for word in line.split(":")[0].split() if "/" not in word)


def measure(n: int, folder: Path) -> dict:
    """Run the command on n rows, watching its memory."""
    data, models = folder / f"rows{n}.csv", folder / "models"
    write_rows(data, n)
    if not models.exists():
        subprocess.run([sys.executable, __file__, "--models", str(models)], check=True)
    work, start = folder / str(n), time.perf_counter()
    private, resident, by_stage = 0.0, 0.0, {}
    with open(folder / f"output{n}.txt", "w") as output:
        process = subprocess.Popen(command(data, models, work), stdout=output, stderr=output)
        while process.poll() is None:
            pids = tree(process.pid)
            now = sum(memory_mb(p, "RssAnon") for p in pids)
            private, resident = max(private, now), max(resident, sum(memory_mb(p, "VmHWM") for p in pids))
            stage = stage_of(work / "run" / "log.txt")
            by_stage[stage] = max(by_stage.get(stage, 0.0), round(now, 1))
            time.sleep(0.02)
    if process.returncode:
        raise SystemExit((folder / f"output{n}.txt").read_text()[-3000:])
    return {
        "rows": n, "file_mb": round(data.stat().st_size / 2**20, 1), "private_peak_mb": round(private, 1),
        "resident_peak_mb": round(resident, 1), "seconds": round(time.perf_counter() - start, 1),
        "private_peak_mb_by_stage": by_stage,
    }  # fmt: skip


def keep(result: dict, path: Path) -> None:
    """Enter a size among the figures, in place of an earlier measurement."""
    known = {r["rows"]: r for r in json.loads(path.read_text())} if path.exists() else {}
    known[result["rows"]] = result
    path.write_text(json.dumps([known[n] for n in sorted(known)], indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--json", type=Path, default=HERE / "run_memory.json")
    parser.add_argument("--models", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.models:
        save_encoder(options.models / "encoder")
        save_noise_lm(options.models / "lm")
        return
    with tempfile.TemporaryDirectory() as folder:
        for n in options.rows:
            r = measure(n, Path(folder))
            keep(r, options.json)
            print(
                f"{r['rows']:>10,} rows  {r['file_mb']:>7} MB file  {r['private_peak_mb']:>8} MB private  "
                f"{r['resident_peak_mb']:>8} MB resident  {r['seconds']:>7} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
