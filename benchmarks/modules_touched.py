"""How many modules of ebmcal take part in common operations: a measure of how much a reader has to open.

    python benchmarks/modules_touched.py

Counts the files in which at least one function is called (imports do not count), with a tiny random encoder.
"""

import contextlib
import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ebmcal

ROOT = Path(ebmcal.__file__).parent
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))


def touched(operation: Callable[[], Any]) -> list[str]:
    """Modules with a function call while `operation` runs, apart from module bodies."""
    called: set[Any] = set()

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            called.add(frame.f_code)

    sys.setprofile(profile)
    try:
        operation()
    finally:
        sys.setprofile(None)
    ours = [Path(code.co_filename) for code in called if code.co_name not in ("<module>", "__getattr__")]
    return sorted({str(path.relative_to(ROOT)) for path in ours if path.is_relative_to(ROOT) and path.suffix == ".py"})


def main() -> None:
    import numpy as np

    from ebmcal.config import load_config
    from ebmcal.pipeline import open_workspace
    from ebmcal.pipeline.trials import make_trainer
    from ebmcal.progress import Reporter
    from ebmcal.run_dir import Trial
    from small_runs import small_settings, write_csv
    from tiny_models import save_encoder

    folder = Path(tempfile.mkdtemp())
    encoder, train = save_encoder(folder / "encoder"), write_csv(folder / "train.csv")
    settings = small_settings(encoder, methods="hidden", calibration="holdout")
    with contextlib.redirect_stderr(io.StringIO()):
        run = touched(lambda: ebmcal.run(train, output=folder / "run", **settings))
        model = ebmcal.open_run(folder / "run").model("hidden")
        model.predict(["a"])
        predict = touched(lambda: model.predict(["a"]))
        config = load_config(folder / "run" / "config.yaml")
        with open_workspace(config.model_copy(update={"output": folder / "run"}), Reporter()) as work:
            trainer = make_trainer(work, Trial("hidden", 1), work.data.splits["train"], folder / "step", curves=False)
            trainer.current_gradient_accumulation_steps = 1
            batch = next(iter(trainer.get_train_dataloader()))
            step = touched(lambda: trainer.training_step(trainer.model, batch))
    probs = np.random.default_rng(0).dirichlet([1, 1, 1], size=100)
    ece = touched(lambda: ebmcal.metrics.ece_classwise(np.arange(100) % 3, probs=probs))
    for name, modules in (("run", run), ("training step", step), ("predict", predict), ("ece_classwise", ece)):
        print(f"{name}: {len(modules)} modules: {', '.join(modules)}")


if __name__ == "__main__":
    main()
