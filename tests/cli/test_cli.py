"""The command line: quick help, exit codes, errors without a traceback, flags and YAML alike, missing extras."""

import re
import signal
import subprocess
import sys
import textwrap
from typing import Literal, get_args, get_origin

import pytest
import typer
from typer.testing import CliRunner

import ebmcal
from ebmcal.cli import COMMANDS, main
from ebmcal.cli.demo import SETTINGS
from ebmcal.cli.options import LISTS, with_config
from ebmcal.config import RunConfig, load_config
from ebmcal.errors import Interrupted


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch):
    """Width and colours that do not depend on where the tests run; the handler of SIGTERM as it was."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def call(*arguments):
    """The exit code of a command."""
    with pytest.raises(SystemExit) as caught:
        main([str(a) for a in arguments])
    return caught.value.code or 0


def run_python(script, *arguments):
    script = textwrap.dedent(script)
    return subprocess.run([sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True)


HELP = """
    import sys
    from ebmcal.cli import main
    try:
        main(sys.argv[1:])
    except SystemExit as stop:
        print("exit", stop.code)
    heavy = {"torch", "transformers", "pydantic", "numpy", "pyarrow", "scipy", "matplotlib", "datasets", "accelerate"}
    print("heavy", sorted(heavy & set(sys.modules)))
"""


def test_help_imports_nothing_heavy_and_names_every_command():
    done = run_python(HELP, "--help")
    assert "exit 0" in done.stdout
    assert "heavy []" in done.stdout
    for name, command in COMMANDS.items():
        assert name.split()[0] in done.stdout
        if " " not in name:
            assert command.help[:20] in done.stdout


def test_the_help_of_a_training_command_imports_no_torch():
    done = run_python(HELP, "run", "--help")
    assert "exit 0" in done.stdout
    assert not {"torch", "transformers"} & set(re.findall(r"'(\w+)'", done.stdout.rpartition("heavy")[2]))


def test_version(capsys):
    assert call("--version") == 0
    assert capsys.readouterr().out == f"ebmcal {ebmcal.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
    assert call(*name.split(), "--help") == 0
    shown = capsys.readouterr().out
    assert "Usage" in shown
    assert COMMANDS[name].help[:20] in shown


def test_groups_have_help(capsys):
    assert call("noise", "--help") == 0
    shown = capsys.readouterr().out
    assert all(leaf in shown for leaf in ("fit", "sample", "show"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rum"], "No such command 'rum'"),
        (["noise", "fitt"], "No such command 'fitt'"),
        (["run", "--tsk", "rte"], "--tsk"),
        (["run", "--noise-ratio", "many"], "--noise-ratio"),
        (["run", "extra"], "extra"),
        (["report"], "Missing argument"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments, words, capsys):
    assert call(*arguments) == 2
    shown = capsys.readouterr().err
    assert words in shown
    assert "Traceback" not in shown


MISTAKES = {
    "no output": (["run", "--task", "rte"], "--output"),
    "unknown task": (["run", "--task", "ret", "--output", "x"], "Unknown task 'ret'"),
    "unknown method": (["run", "--methods", "hiden,baseline"], "Did you mean 'hidden'"),
    "K below 1": (["run", "--noise-ratio", "0"], "noise-ratio"),
    "mask ratio": (["run", "--mask-ratio", "1.5"], "mask-ratio"),
    "absent config": (["run", "--config", "absent.yaml"], "absent.yaml does not exist"),
    "ood": (["run", "--ood", "books.csv"], "--ood takes NAME=FILE"),
    "absent store": (["noise", "show", "absent"], "absent is not there"),
    "absent model": (["noise", "show", "absent", "--model", "nowhere"], "The model folder nowhere is not there"),
    "data without model": (["noise", "show", "absent", "--data", "x.parquet"], "--data goes with --model"),
    "model without data": (["noise", "show", "absent", "--model", "."], "Give the predictions on real texts as well"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_exit_code_1_without_a_traceback(case, capsys):
    arguments, words = MISTAKES[case]
    assert call(*arguments) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("Error: ")
    assert words in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""


def test_all_mistakes_of_a_command_line_at_once(capsys):
    assert call("run", "--noise-ratio", "0", "--mask-ratio", "2", "--methods", "hiden", "--task", "ret") == 1
    shown = capsys.readouterr().err
    assert all(word in shown for word in ("noise-ratio", "mask-ratio", "hiden", "ret"))


def test_stopping_and_broken_disks_are_told(monkeypatch, capsys):
    def raising(error):
        def function(config):
            raise error

        return with_config(function)

    cases = [
        (Interrupted("stopped at step 3"), 130, "stopped at step 3"),
        (KeyboardInterrupt(), 130, "run the same command again"),
        (OSError(28, "No space left on device", "x.bin"), 1, "No space left on device (x.bin)"),
        (BrokenPipeError(), 0, ""),
    ]
    for error, code, words in cases:
        monkeypatch.setattr("ebmcal.cli.run.run", raising(error))
        assert call("run") == code
        assert words in capsys.readouterr().err


def given_to(*arguments):
    """The config that a command receives."""
    received = []
    app = typer.Typer()
    app.command()(with_config(received.append))
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return received[0]


EXAMPLES = {"Path": ("some/file", None), "int": ("9", 9), "float": ("0.25", 0.25), "str": ("word", "word")}


def test_every_setting_is_a_flag():
    """Without any flag the config is the default; with each flag alone, that setting and no other changes."""
    assert given_to() == RunConfig()
    special = {
        "methods": ("scalar, baseline", ["scalar", "baseline"]),
        "seeds": ("3,4", [3, 4]),
        "posthoc": ("temperature", ["temperature"]),
        "report_to": ("tensorboard", ["tensorboard"]),
        "ood": ("a=b.csv", None),
        "task": ("rte", "rte"),
        "noise": ("splice", "splice"),
        "encoding": ("latin-1", "latin-1"),
        "tokens_per_micro_batch": ("640", 640),
        "train_prediction_rows": ("640", 640),
        "max_length": ("64", 64),
    }
    assert set(LISTS) < set(special)
    older = ("noise_lm", "noise_mode")  # become `noise`
    for name, field in RunConfig.model_fields.items():
        if name in older:
            continue
        flag = "--" + name.replace("_", "-")
        kind = str(field.annotation)
        if field.annotation is bool:
            config, expected = given_to(flag), True
        else:
            guess = next((example for word, example in EXAMPLES.items() if word in kind), None)
            if get_origin(field.annotation) is Literal:
                guess = (get_args(field.annotation)[-1],) * 2
            text, expected = special.get(name, guess)
            config = given_to(flag, text)
        if expected is not None:
            assert getattr(config, name) == expected, name
        changed = {k for k in RunConfig.model_fields if getattr(config, k) != getattr(RunConfig(), k)}
        assert changed == {name}
    assert given_to("--ood", "a=b.csv", "--ood", "c=d.csv").ood.keys() == {"a", "c"}
    assert given_to("--noise-lm", "gpt2", "--noise-mode", "gaps") == RunConfig(noise="gaps:gpt2")


def test_flags_override_the_file(tmp_path):
    (tmp_path / "run.yaml").write_text("steps: 5\nnoise-ratio: 3\nhub: true\n")
    config = given_to("--config", tmp_path / "run.yaml", "--steps", "7", "--no-hub")
    assert (config.steps, config.noise_ratio, config.hub) == (7, 3, False)


WITHOUT_TORCH = """
    import sys
    from importlib.machinery import PathFinder

    class WithoutTorch(PathFinder):
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            return None if name.split(".")[0] in ("torch", "transformers") else super().find_spec(name, path, target)

    sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutTorch
    from ebmcal.cli import main
    main(sys.argv[1:])
"""


def test_a_missing_extra_is_named():
    for arguments in (["run"], ["run", "--task", "rte", "--output", "x"], ["predict", "a", "b", "-o", "c"]):
        done = run_python(WITHOUT_TORCH, *arguments)
        assert done.returncode == 1, done.stderr
        assert done.stderr.startswith("Error: This needs torch, transformers, which are not installed.")
        assert "pip install 'ebmcal[train]'" in done.stderr
        assert "Traceback" not in done.stderr


def test_without_torch_help_and_judging_still_work(tmp_path):
    for arguments in (["--help"], ["run", "--help"], ["tasks"], ["evaluate", "--help"], ["noise", "show", "--help"]):
        done = run_python(WITHOUT_TORCH, *arguments)
        assert done.returncode == 0, (arguments, done.stderr)
        assert done.stdout
    table = tmp_path / "p.csv"
    table.write_text("label,prob_a,prob_b\n" + "a,0.8,0.2\nb,0.3,0.7\n" * 20)
    done = run_python(WITHOUT_TORCH, "evaluate", table)
    assert done.returncode == 0, done.stderr


def test_the_demo_is_a_valid_config():
    config = load_config(None, SETTINGS)
    assert config.methods == ["baseline", "hidden-smoothing"]


class Gone:
    """Standard output whose reader has gone."""

    encoding = "utf-8"

    def write(self, _):
        raise BrokenPipeError(32, "Broken pipe")

    def fileno(self):
        return 1

    flush = isatty = lambda self: False


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_a_reader_that_has_gone_is_no_error(name, monkeypatch):
    monkeypatch.setattr("os.dup2", lambda *_: None)  # the test goes on writing
    monkeypatch.setattr("sys.stdout", Gone())
    assert call(*name.split(), "--help") == 0


@pytest.mark.parametrize("arguments", [["watch", "--help"], ["tasks"]])
def test_a_pipe_that_is_closed_ends_quietly(arguments):
    command = [sys.executable, "-m", "ebmcal", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0
