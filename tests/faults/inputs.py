"""Bad input: every command called wrongly, in more than a hundred ways.

Refused clearly means: an exit code above 0, no traceback, words that name what came, and nothing half-made left behind.
"""

import json
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .kills import Ground
from .playground import write_csv
from .record import Case

RUN = (
    "--train inputs/reviews.csv --encoder inputs/encoder --noise-lm inputs/lm --noise-mode gaps --methods baseline "
    "--steps 2 --batch-size 4 --max-length 32 --cache-dir cache"
)
MODEL = "done/checkpoints/hidden-seed1/model"
TEST = "done/predictions/hidden-seed1/test.parquet"


@dataclass(frozen=True)
class BadInput:
    """A call and the words that its refusal must have."""

    call: str
    words: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"inputs {self.call}"


def _cases(prefix: str, lines: str, suffix: str = "") -> list[BadInput]:
    """Lines of `rest of the call | word | word`."""
    found = []
    for line in lines.strip().splitlines():
        call, *words = (part.strip() for part in line.split(" | "))
        found.append(BadInput(f"{prefix} {call} {suffix}".strip(), tuple(words)))
    return found


USAGE = """
rum | 'rum'
noise fitt | 'fitt'
noise | Usage
run --tsk rte | --tsk
run extra | extra
run --steps many | --steps | 'many'
run --steps 2.5 | --steps | '2.5'
run --learning-rate fast | --learning-rate | 'fast'
tasks mnlii | 'mnlii' | mnli
tasks sts-b | STS-B | regression
tasks rte sst2 | sst2
demo --seed one | --seed | 'one'
demo --seed -1 --output out | -1
demo --output inputs/reviews.csv | inputs/reviews.csv
evaluate | files
predict | MODEL
report | 'run'
report done --format pdf | 'pdf'
benchmark | 'config'
calibrate | model
"""

SETTINGS = """
--methods hiden | 'hiden' | hidden
--methods , | methods
--methods baseline,baseline | baseline, baseline
--seeds one | seeds | one
--seeds -1 | -1
--seeds 1,1 | 1, 1
--seeds 4294967296 | seeds | 4294967296 came
--noise-seed 4294967296 | noise-seed | 4294967296 came
--warmup-steps 3 | warmup-steps is 3 | 2 steps
--learning-rate 1e30 | learning-rate | 1e+30 came
--encoding martian | 'martian' | latin-1
--label-column text | 'text' | label
--noise 'infill:"lm' | quote
--posthoc temprature | 'temprature' | temperature
--noise-mode fill | 'fill' | infill
--noise-ratio 0 | noise-ratio | 0 came
--noise-ratio -2 | noise-ratio | -2 came
--mask-ratio 1.5 | mask-ratio | 1.5
--mask-ratio nan | mask-ratio | nan
--steps 0 | steps | 0 came
--steps -3 | steps | -3 came
--epochs 3 | steps | epochs
--batch-size 0 | batch-size | 0 came
--batch-size 100000 | 100000
--max-length 0 | max-length | 0 came
--max-length 7 | max-length | 7 came
--max-length 512 | max-length | 512 | 64
--max-length 1000000 | max-length | 1000000
--learning-rate 0 | learning-rate | 0
--learning-rate -1 | learning-rate | -1
--learning-rate nan | learning-rate | nan
--learning-rate inf | learning-rate | inf
--weight-decay -1 | weight-decay | -1
--warmup-steps -1 | warmup-steps | -1
--top-k 0 | top-k | 0 came
--noise-samples 0 | noise-samples
--samples-per-mask 0 | samples-per-mask
--noise-start 1 | noise-start | 1
--noise-every 0 | noise-every
--energy-weight 0 | energy-weight
--energy-weight inf --methods hidden | energy-weight | inf
--poscal-weight -1 | poscal-weight | -1
--precision fp8 | precision | 'fp8'
--tokens-per-micro-batch 1 | tokens-per-micro-batch
--train-prediction-rows 1 | train-prediction-rows
--max-train-rows 0 | max-train-rows
--max-train-rows 2 | 2 rows
--split-seed -1 | split-seed
--ood books.csv | NAME=FILE | books.csv
--ood books=absent.csv | absent.csv
--task ret | 'ret' | rte
--task rte | reviews.csv | 'sentence1'
--hub | hub
--data-dir inputs | data
--encoder absent/encoder | absent/encoder
--encoder ./absent | ./absent
--encoder miniml | 'miniml' | minilm
--encoder bad/empty_folder | bad/empty_folder | config.json
--encoder bad/pickled | bad/pickled | safetensors
--encoder bad/broken_config | bad/broken_config
--encoder bad/broken_weights | bad/broken_weights
--encoder bad/truncated_weights | bad/truncated_weights
--encoder bad/no_tokenizer | bad/no_tokenizer
--encoder bad/remote_code | bad/remote_code
--encoder inputs/reviews.csv | inputs/reviews.csv
--encoder inputs/lm --methods scalar | scalar
--noise-lm smolm2 --methods hidden | 'smolm2' | smollm2
--noise-lm bad/empty_folder --methods hidden | bad/empty_folder
--noise-lm bad/pickled --methods hidden | bad/pickled | safetensors
--noise-lm bad/broken_weights --methods hidden | bad/broken_weights
--noise-lm inputs/encoder --methods hidden | inputs/encoder
--noise-mode half --methods hidden | half | pair
--text-column txt | 'txt' | text
--label-column lable | 'lable' | label
--text-pair-column second | 'second'
--calibration absent.csv | absent.csv
--test bad/other_labels.csv | other_labels.csv | terrible
--test bad/empty.csv | empty.csv
--output inputs/reviews.csv | inputs/reviews.csv
--output inputs | inputs
--output inputs/reviews.csv/run | inputs/reviews.csv
--output done | done | steps
--cache-dir inputs/reviews.csv | inputs/reviews.csv
--config absent.yaml | absent.yaml
--config inputs | inputs
--config bad/broken.yaml | bad/broken.yaml
--config bad/python.yaml | bad/python.yaml
--config bad/list.yaml | bad/list.yaml
--config bad/unknown.yaml | 'noise_ration' | noise_ratio
--config bad/binary.yaml | bad/binary.yaml
--config bad/nested.yaml | bad/nested.yaml
"""

FILES = """
absent.csv | absent.csv
inputs | inputs
bad/empty.csv | empty.csv
bad/header_only.csv | header_only.csv
bad/one_class.csv | one_class.csv | good
bad/no_label.csv | no_label.csv | label
bad/twice.csv | twice.csv | label
bad/binary.csv | binary.csv
bad/binary.parquet | binary.parquet
bad/broken.jsonl | broken.jsonl
bad/numbers.jsonl | numbers.jsonl
bad/texts.xlsx | texts.xlsx
bad/texts.txt | texts.txt
bad/many_labels.csv | many_labels.csv
bad/blank.csv | blank.csv
bad/three_rows.csv | three_rows.csv
"""

JUDGED = """
absent.csv | absent.csv
inputs | inputs
bad/empty.csv | empty.csv
bad/binary.parquet | binary.parquet
bad/binary.npz | binary.npz
bad/pickled.npz | pickled.npz
inputs/reviews.csv | inputs/reviews.csv | prob_
bad/p_nan.csv | p_nan.csv | nan
bad/p_sum.csv | p_sum.csv | 1.1
bad/p_negative.csv | p_negative.csv | 1.2
bad/p_label.csv | p_label.csv | 'c'
bad/p_no_label.csv | p_no_label.csv | 'label'
bad/p_words.csv | p_words.csv | 'high'
bad/p_one_class.csv | p_one_class.csv | class
bad/p_both.csv | p_both.csv | logit_
bad/p_unlabelled.csv | p_unlabelled.csv
bad/p_good.csv bad/p_good.csv | p_good.csv | twice
bad/p_good.csv bad/p_classes.csv | p_classes.csv | c
bad/p_good.csv bad/p_rows.csv | p_rows.csv | id
bad/p_twice.csv bad/p_good.csv | p_twice.csv | m1
bad/p_good.csv --metrics ecce | 'ecce' | ece
bad/p_good.csv --metrics , | --metrics
bad/p_good.csv --n-bins 0 | --n-bins
bad/p_good.csv --n-bins many | --n-bins | 'many'
bad/p_good.csv --resamples -1 | --resamples
bad/p_good.csv --seed -1 | --seed
bad/p_good.csv --format pdf | 'pdf'
bad/p_good.csv --calibrator temperature | --fit
bad/p_good.csv --fit absent.csv | absent.csv
bad/p_good.csv --fit bad/p_good.csv --calibrator tempo | 'tempo' | temperature
bad/p_good.csv --fit bad/p_good.csv --calibrator scaling-binning:n_bins=0 | n_bins | 0
bad/p_good.csv --fit bad/p_good.csv --calibrator scaling-binning:bins=5 | bins
bad/p_good.csv --fit bad/p_classes.csv | p_classes.csv
bad/p_good.csv --fit bad/p_good.csv --fit bad/p_good.csv | --fit | 2
bad/p_good.csv --ood absent.csv | absent.csv
bad/p_good.csv --json bad/p_good.csv | --json | p_good.csv
bad/p_good.csv --json inputs | inputs
bad/p_good.csv --json inputs/reviews.csv/x.json | inputs/reviews.csv
bad/p_good.csv --report inputs | inputs
"""

IN_USE = f"""
export absent --onnx out | absent
export {MODEL} | --onnx
export {MODEL} --onnx inputs/reviews.csv | inputs/reviews.csv
export {MODEL} --onnx inputs | inputs
export {MODEL} --onnx out --on absent.csv | absent.csv
export {MODEL} --onnx out --on inputs/reviews.csv --label-column mood | 'mood'
export bad/pickled --onnx out | bad/pickled
export bad/odd_calibrator --onnx out | calibrator.json
push absent me/films | absent
push {MODEL} films | USER/NAME
push bad/empty_folder me/films | bad/empty_folder
stress {MODEL} | --on
stress absent --on inputs/reviews.csv | absent
stress {MODEL} --on absent.csv | absent.csv
stress {MODEL} --on inputs/reviews.csv --changes typo | 'typo' | typos
stress {MODEL} --on inputs/reviews.csv --suite bad/list.yaml | list.yaml
stress {MODEL} --on inputs/reviews.csv --suite absent.yaml | absent.yaml
stress {MODEL} --on bad/no_label.csv | label
stress {MODEL} --on inputs/reviews.csv --report inputs/reviews.csv | inputs/reviews.csv
serve | model
serve absent --port 0 | absent
serve bad/empty_folder --port 0 | bad/empty_folder
serve bad/pickled --port 0 | bad/pickled
serve bad/broken_weights --port 0 | bad/broken_weights
serve bad/no_tokenizer --port 0 | bad/no_tokenizer
serve bad/broken_calibrator --port 0 | calibrator.json
serve {MODEL} --port 70000 | 70000
serve {MODEL} --port 0 --host nowhere.invalid | nowhere.invalid
serve {MODEL} --port 0 --max-texts 0 --timeout -1 | max_texts
serve {MODEL} --port 0 --max-texts 9 --max-queue 8 | max_queue
playground absent --port 0 | absent
playground {MODEL} absent --port 0 | absent
playground {MODEL} --port 70000 | 70000
watch absent {TEST} | absent
watch {MODEL} {TEST} | 24 labelled rows
watch {MODEL} {TEST} --every 1y | 1y
watch {MODEL} {TEST} --reference done/predictions/hidden-seed1/train.parquet | train.parquet
watch {MODEL} {TEST} --false-alarms 2 | --false-alarms
watch {MODEL} {TEST} --reference bad/p_good.csv | p_good.csv
watch {MODEL} {TEST} --json {TEST} | test.parquet
"""

OTHERS = f"""
predict absent inputs/reviews.csv -o out.csv | absent
predict inputs/reviews.csv inputs/reviews.csv -o out.csv | inputs/reviews.csv
predict bad/empty_folder inputs/reviews.csv -o out.csv | bad/empty_folder
predict bad/pickled inputs/reviews.csv -o out.csv | bad/pickled
predict bad/broken_weights inputs/reviews.csv -o out.csv | bad/broken_weights
predict bad/truncated_weights inputs/reviews.csv -o out.csv | bad/truncated_weights
predict bad/no_tokenizer inputs/reviews.csv -o out.csv | bad/no_tokenizer
predict bad/broken_card inputs/reviews.csv -o out.csv | ebmcal.json
predict bad/broken_calibrator inputs/reviews.csv -o out.csv | calibrator.json
predict bad/odd_calibrator inputs/reviews.csv -o out.csv | calibrator.json
predict {MODEL} absent.csv -o out.csv | absent.csv
predict {MODEL} bad/empty.csv -o out.csv | empty.csv
predict {MODEL} bad/binary.parquet -o out.csv | binary.parquet
predict {MODEL} inputs/reviews.csv -o out.xlsx | out.xlsx
predict {MODEL} inputs/reviews.csv -o out | out
predict {MODEL} inputs/reviews.csv -o inputs | inputs
predict {MODEL} inputs/reviews.csv -o out.csv --text-column body | 'body' | text
predict {MODEL} inputs/reviews.csv -o out.csv --label-column mood | 'mood' | label
predict {MODEL} bad/other_labels.csv -o out.csv --label-column label --strict | terrible
predict {MODEL} inputs/reviews.csv -o inputs/reviews.csv | is the input
predict {MODEL} inputs/reviews.csv -o out.csv --input-format yaml | 'yaml'
predict {MODEL} inputs/reviews.csv -o out.csv --rule absent.json | absent.json
predict {MODEL} inputs/reviews.csv -o out.csv --mc-dropout 1 | mc-dropout
decide | --on
decide --on {TEST} --max-error 0.2 | Where shall
decide absent --on {TEST} --max-error 0.2 | absent
decide {MODEL} --on absent.parquet --max-error 0.2 | absent.parquet
decide {MODEL} --on bad/p_good.csv --max-error 0.2 | p_good.csv | 3
decide {MODEL} --on {TEST} --max-error 2 | max-error | 2
decide {MODEL} --on {TEST} --max-error 0.0001 | rows
decide {MODEL} --on {TEST} --max-error 0.2 --score enrgy | 'enrgy' | energy
decide {MODEL} --on {TEST} --coverage 0.9 --sets all | 'all' | split
decide {MODEL} --on {TEST} --max-error 0.2 -o bad/p_good.csv | p_good.csv
decide {MODEL} --on bad/p_unlabelled3.csv --max-error 0.2 | p_unlabelled3.csv
calibrate absent --on {TEST} | absent
calibrate bad/empty_folder --on {TEST} | bad/empty_folder
calibrate {MODEL} --on absent.parquet | absent.parquet
calibrate {MODEL} --on bad/p_good.csv | p_good.csv | 3
calibrate {MODEL} --on {TEST} --calibrator tempo | 'tempo' | temperature
calibrate {MODEL} --on {TEST} --calibrator vector --fold | vector
calibrate {MODEL} --on bad/p_unlabelled3.csv | p_unlabelled3.csv
calibrate bad/broken_model_config --on {TEST} | config.json
report absent | absent
report inputs | inputs
report inputs/reviews.csv | inputs/reviews.csv
report bad/run_metrics | metrics.json
report bad/run_predictions | test.parquet
report bad/run_history | history
report done --output inputs | inputs
noise show absent | absent
noise show inputs | inputs
noise show bad/noise_record | noise.jsonl
noise show done -n 0 | -n
noise sample {RUN} --count 0 | --count
noise sample {RUN} --count -5 | --count
noise sample {RUN} --store inputs/reviews.csv | inputs/reviews.csv
noise fit {RUN} --noise-lm-steps -1 | noise-lm-steps
noise fit {RUN} --noise-lm bad/pickled --methods hidden | bad/pickled
noise fit {RUN} --train bad/one_class.csv | one_class.csv
train {RUN} | --output
train {RUN} --output out --batch-size -1 | batch-size | -1
train {RUN} --output inputs/reviews.csv | inputs/reviews.csv
train {RUN} --output done | done | steps
run {RUN} | --output
run --output out --config bad/many.yaml | noise-ratio | 'hiden' | mask-ratio
run --output out --config bad/types.yaml | seeds | methods
benchmark absent.yaml | absent.yaml
benchmark inputs | inputs
benchmark bad/broken.yaml | bad/broken.yaml
benchmark bad/python.yaml | bad/python.yaml
benchmark bad/list.yaml | bad/list.yaml
benchmark bad/binary.yaml | bad/binary.yaml
benchmark bad/b_no_tasks.yaml | tasks
benchmark bad/b_no_output.yaml | output
benchmark bad/b_unknown_task.yaml | 'ret'
benchmark bad/b_twice.yaml | first
benchmark bad/b_escape.yaml | ../first
benchmark bad/b_setting.yaml | noise_ration
benchmark bad/b_absent.yaml | absent.csv
benchmark inputs/benchmark.yaml --only third | third
benchmark inputs/benchmark.yaml --output inputs/reviews.csv | inputs/reviews.csv
"""

CASES: list[BadInput] = [
    *_cases("", USAGE),
    *_cases(f"run {RUN} --output out", SETTINGS),
    *_cases(f"run {RUN} --output out --train", FILES),
    *_cases("evaluate", JUDGED),
    *_cases("", OTHERS),
    *_cases("", IN_USE),
]


def lay_out(ground: Ground) -> Path:
    """A folder with sound inputs, a finished run as `done` and everything bad as `bad`."""
    folder = ground.scratch / "bad input"
    ground.reference("run")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ground.inputs, folder / "inputs")
    shutil.copytree(ground.scratch / "reference run" / "run", folder / "done")
    (folder / "bad").mkdir()
    _texts(folder / "bad")
    _settings(folder / "bad")
    _predictions(folder / "bad")
    _models(folder)
    _runs(folder)
    return folder


def refuse(ground: Ground, folder: Path, bad: BadInput) -> Case:
    """Call a command wrongly and judge the refusal."""
    before = _there(folder)
    ended = ground.worker.run(shlex.split(bad.call), folder, timeout=120)
    said = " ".join(ended.said.replace("│", " ").split())
    problems = [] if ended.code > 0 else [f"exit code {ended.code}"]
    problems += ["a traceback"] if "Traceback" in said else []
    problems += [f"{word!r} is not named" for word in bad.words if word not in said and word not in ended.said]
    made = sorted(_there(folder) - before)
    problems += [f"left {', '.join(made)}"] if made else []
    for name in (name for name in made if (folder / name).exists()):
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    problem = {"problem": "; ".join(problems), "said": ended.said[-1500:]} if problems else {"said": said[-400:]}
    return {"part": "inputs", "key": bad.key, "ok": not problems, "code": ended.code} | problem


def _there(folder: Path) -> set[str]:
    """What lies in the folder, the cache aside: what it holds is sound and found again."""
    paths = [p.relative_to(folder) for p in folder.rglob("*")]
    return {p.as_posix() for p in paths if p.parts[0] not in {"cache"}}


def _texts(bad: Path) -> None:
    sound = [(f"a film number {i}", "good" if i % 2 else "bad") for i in range(40)]
    (bad / "empty.csv").write_bytes(b"")
    write_csv(bad / "header_only.csv", [])
    write_csv(bad / "one_class.csv", [(text, "good") for text, _ in sound])
    write_csv(bad / "no_label.csv", [(text, "") for text, _ in sound])
    write_csv(bad / "twice.csv", [(*row, "x") for row in sound], ("text", "label", "label"))
    write_csv(bad / "many_labels.csv", [(f"text {i}", f"label {i}") for i in range(2000)])
    write_csv(bad / "blank.csv", [("  ", label) for _, label in sound])
    write_csv(bad / "three_rows.csv", sound[:3])
    write_csv(bad / "other_labels.csv", [(text, "terrible") for text, _ in sound])
    junk = np.random.default_rng(0).bytes(3000)
    for name in ("binary.csv", "binary.parquet", "binary.npz", "texts.xlsx", "binary.yaml"):
        (bad / name).write_bytes(junk)
    (bad / "texts.txt").write_text("a film\nanother film\n")
    (bad / "broken.jsonl").write_text('{"text": "a film", "label": "good"}\n{"text": "a\n')
    (bad / "numbers.jsonl").write_text("1\n2\n3\n")


def _settings(bad: Path) -> None:
    texts = {
        "broken": "methods: [baseline\nsteps: 3", "python": "steps: !!python/object/apply:os.system ['touch owned']",
        "list": "- steps\n- 3", "unknown": "noise_ration: 2", "types": "seeds: one\nmethods: 3",
        "many": "noise_ratio: 0\nmethods: [hiden]\nmask_ratio: 2", "nested": "? [steps]\n: 3",
        "b_no_tasks": "output: out\nencoder: inputs/encoder",
        "b_no_output": "tasks: [{name: first, train: inputs/reviews.csv}]",
        "b_unknown_task": "output: out\ntasks: [ret]",
        "b_twice": _tasks("{name: first, train: inputs/reviews.csv}, {name: first, train: inputs/others.csv}"),
        "b_escape": _tasks("{name: ../first, train: inputs/reviews.csv}"),
        "b_setting": _tasks("{name: first, train: inputs/reviews.csv, noise_ration: 2}"),
        "b_absent": _tasks("{name: first, train: absent.csv}"),
    }  # fmt: skip
    for name, text in texts.items():
        (bad / f"{name}.yaml").write_text(text + "\n")


def _tasks(tasks: str) -> str:
    return (
        f"output: out\ncache_dir: cache\nencoder: inputs/encoder\nmethods: [baseline]\nmax_length: 32\ntasks: [{tasks}]"
    )


def _predictions(bad: Path) -> None:
    classes = ("id", "label", "prob_a", "prob_b")
    sound = [(f"m{i}", "ab"[i % 2], 0.7, 0.3) for i in range(40)]
    write_csv(bad / "p_good.csv", sound, classes)
    write_csv(bad / "p_nan.csv", [("m0", "a", "nan", 0.5), *sound], classes)
    write_csv(bad / "p_sum.csv", [*sound, ("m9", "a", 0.7, 0.4)], classes)
    write_csv(bad / "p_negative.csv", [*sound, ("m9", "a", 1.2, -0.2)], classes)
    write_csv(bad / "p_label.csv", [*sound, ("m9", "c", 0.5, 0.5)], classes)
    write_csv(bad / "p_words.csv", [*sound, ("m9", "a", "high", 0.5)], classes)
    write_csv(bad / "p_no_label.csv", [(i, a, b) for i, _, a, b in sound], ("id", "prob_a", "prob_b"))
    write_csv(bad / "p_one_class.csv", [(i, "a", 1.0) for i, *_ in sound], ("id", "label", "prob_a"))
    write_csv(bad / "p_both.csv", [(*row, 1.0, 2.0) for row in sound], (*classes, "logit_a", "logit_b"))
    write_csv(bad / "p_unlabelled.csv", [(i, "", a, b) for i, _, a, b in sound], classes)
    write_csv(bad / "p_classes.csv", [(i, "c", a, b) for i, _, a, b in sound], ("id", "label", "prob_a", "prob_c"))
    write_csv(bad / "p_rows.csv", [(f"other{i}", *row[1:]) for i, row in enumerate(sound)], classes)
    write_csv(bad / "p_twice.csv", [*sound[:-1], ("m1", "a", 0.7, 0.3)], classes)
    three = ("id", "label", "prob_bad", "prob_fair", "prob_good")
    write_csv(bad / "p_unlabelled3.csv", [(i, "", 0.5, 0.3, 0.2) for i, *_ in sound], three)
    np.savez(bad / "pickled.npz", probs=np.array([[{"a": 1}]], dtype=object), label=np.array([0]))


def _models(folder: Path) -> None:
    bad, sound = folder / "bad", folder / MODEL
    (bad / "empty_folder").mkdir()
    for name in ("pickled", "broken_weights", "truncated_weights", "no_tokenizer", "remote_code", "broken_config"):
        shutil.copytree(folder / "inputs" / "encoder", bad / name)
    weights = bad / "pickled" / "model.safetensors"
    weights.rename(weights.with_name("pytorch_model.bin"))
    (bad / "broken_weights" / "model.safetensors").write_bytes(b"\xff" * 2000)
    whole = (bad / "truncated_weights" / "model.safetensors").read_bytes()
    (bad / "truncated_weights" / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    for file in (bad / "no_tokenizer").glob("*token*"):
        file.unlink()
    (bad / "broken_config" / "config.json").write_text("{")
    code = {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModel": "own.Model"}}
    (bad / "remote_code" / "config.json").write_text(json.dumps(code))
    (bad / "remote_code" / "own.py").write_text("open('owned', 'w').write('x')\nclass Config: ...\nclass Model: ...\n")
    for name in ("broken_card", "broken_calibrator", "odd_calibrator", "broken_model_config"):
        shutil.copytree(sound, bad / name)
    (bad / "broken_card" / "ebmcal.json").write_text("{")
    (bad / "broken_calibrator" / "calibrator.json").write_text("{")
    (bad / "odd_calibrator" / "calibrator.json").write_text('{"name": "temperature", "temperature_": "warm"}')
    (bad / "broken_model_config" / "config.json").write_text("[]")


def _runs(folder: Path) -> None:
    bad = folder / "bad"
    for name in ("run_metrics", "run_predictions", "run_history"):
        shutil.copytree(folder / "done", bad / name)
    (bad / "run_metrics" / "metrics.json").write_text('{"rows": 3')
    (bad / "run_predictions" / "predictions" / "hidden-seed1" / "test.parquet").write_bytes(b"PAR1")
    (bad / "run_history" / "history" / "hidden-seed1.jsonl").write_text("{\n{}\n")
    (bad / "noise_record").mkdir()
    (bad / "noise_record" / "noise.jsonl").write_text("[1]")
