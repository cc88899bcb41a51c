"""What is installed: the wheel's contents, cheap imports, the public names and the command's flags."""

import ast
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import skipjax
from skipjax.main import app

ROOT = Path(__file__).parents[1]
TRAINING_FLAGS = {
    *("--model", "--data", "--prompt-template", "--target-column", "--steps", "--batch-size", "--learning-rate"),
    *("--out", "--save-every", "--log-every", "--eval-data", "--seed", "--optimizer", "--accumulate", "--resume"),
}
DEPTH_FLAGS = {"--speedup", "--max-depth", "--min-depth", "--warmup-layers", "--horizon"}
FLAGS = {
    "": {"--version", "--compilation-cache"},
    "generate": DEPTH_FLAGS
    | {"--model", "--method", "--max-new-tokens", "--json", "--temperature", "--top-p", "--top-k", "--seed"}
    | {"--prompts-file", "--heads", "--shallow-layers", "--threshold", "--adaptive", "--adaptive-state", "--verify"}
    | {"--html", "--output"},
    "calibrate": {"--model", "--heads", "--data", "--layers", "--confidence", "--agreement"},
    "convert": {"--to", "--dtype", "--check"},
    "evaluate": {"--model", "--data", "--prompt-template", "--target-column", "--method", "--speedup"},
    "compare": {"--name", "--full", "--out"},
    "bench": {"--model", "--method", "--speedup", "--batch-size", "--against", "--plot", "--json"},
    "compile": {"--shape", "--topology", "--method", "--speedup", "--batch-size", "--training", "--json"},
    "train": set(),
    "train full": TRAINING_FLAGS,
    "train skipdecode": TRAINING_FLAGS | DEPTH_FLAGS,
    "train free": TRAINING_FLAGS | {"--shallow-layers", "--distillation", "--distillation-weight"},
    "train multi-exit": TRAINING_FLAGS,
    "train heads": TRAINING_FLAGS | {"--layers", "--norm", "--adapter-rank", "--classifier"},
    "train tokenizer": {"--data", "--out"},
}


def python(*arguments: str, cwd: Path | None = None) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    """A wheel of the sources, built in a copy: an old build directory would leak files into it."""
    sources = tmp_path_factory.mktemp("sources")
    for name in ("skipjax", "train", "infer", "tests"):
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    python("-c", "import setuptools.build_meta as backend; backend.build_wheel('dist')", cwd=sources)
    (file,) = (sources / "dist").iterdir()
    return zipfile.Path(file)


def test_wheel_holds_only_skipjax(wheel: zipfile.Path) -> None:
    assert {entry.name for entry in wheel.iterdir()} == {"skipjax", f"skipjax-{skipjax.__version__}.dist-info"}


def test_wheel_holds_every_file(wheel: zipfile.Path) -> None:
    installed_under = {"skipjax": "skipjax", "train": "skipjax/train", "infer": "skipjax/infer"}
    expected = {
        f"{installed}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, installed in installed_under.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    names = {name for name in wheel.root.namelist() if not name.endswith("/")}
    assert {name for name in names if name.startswith("skipjax/")} == expected
    assert "skipjax/py.typed" in names
    assert f"skipjax-{skipjax.__version__}.dist-info/licenses/LICENSE" in names


def test_wheel_metadata(wheel: zipfile.Path) -> None:
    folder = wheel / f"skipjax-{skipjax.__version__}.dist-info"
    metadata = (folder / "METADATA").read_text(encoding="utf-8")
    assert f"\nVersion: {skipjax.__version__}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "skipjax = skipjax.main:main" in (folder / "entry_points.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("module", "banned"),
    [
        ("skipjax", {"jax", "flax", "numpy", "transformers", "torch", "datasets", "tokenizers"}),
        ("skipjax.main", {"transformers", "torch", "datasets", "sacrebleu", "rouge_score"}),
    ],
)
def test_import_is_cheap(module: str, banned: set[str]) -> None:
    loaded = python("-c", f"import sys, {module}; print(*sys.modules)").split()
    assert module in loaded
    assert not banned.intersection(loaded)


def test_public_names() -> None:
    for name in skipjax.__all__:
        assert getattr(skipjax, name) is not None
    assert set(dir(skipjax)) >= set(skipjax.__all__)
    assert len(set(skipjax.__all__)) == len(skipjax.__all__)
    with pytest.raises(AttributeError, match="no attribute 'generat'"):
        skipjax.generat  # noqa: B018


def test_type_checkers_see_the_public_names() -> None:
    """The imports under TYPE_CHECKING name what is loaded lazily, no more and no less."""
    tree = ast.parse(Path(skipjax.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname or alias.name for node in imports for alias in node.names}
    assert seen == set(skipjax.__all__) - {"__version__"}


@pytest.mark.parametrize("command", FLAGS)
def test_help(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0, result.output
    assert FLAGS[command] | {"--help"} <= set(re.findall(r"--[a-z][a-z-]*", result.output))


def test_every_command_is_tested() -> None:
    commands = typer.main.get_group(app).commands
    train = commands["train"]
    assert isinstance(train, typer.core.TyperGroup)
    assert {*commands, *(f"train {name}" for name in train.commands)} == set(FLAGS) - {""}


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout == f"skipjax {skipjax.__version__}\n"
