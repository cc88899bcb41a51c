"""Checkpoints of skipjax: one directory format for `sj.save` and for training output, with orbax inside.

    DIR/skipjax.json         what the weights are: format version, config, recorded method, dtype, who wrote it
    DIR/tokenizer/           tokenizer files, if the model has a tokenizer
    DIR/checkpoints/STEP/    by orbax: "params" (unrolled), and from training also "optimizer" and "progress"

skipjax.json is replaced as a whole, and orbax renames a step's directory into place when it is complete, so a process
killed at any moment leaves either the old or the new.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import shutil
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from skipjax.config import ModelConfig
from skipjax.decoder import Execution, Params, abstract_params, execution_of, stack_layers, unstack_layers
from skipjax.json_files import read_json, write_json
from skipjax.language_model import LanguageModel
from skipjax.methods import Full, Method
from skipjax.recorded import Recorded
from skipjax.tokenizer import Tokenizer

FORMAT_VERSION = 1
DESCRIPTION = "skipjax.json"
TOKENIZER = "tokenizer"
CHECKPOINTS = "checkpoints"


def save(lm: LanguageModel, directory: str | Path) -> None:
    """Writes a model so that `skipjax.load(directory)` gives it back, bit for bit.

    Raises ValueError if `directory` exists, unless it is empty or was itself written by `save`, which is replaced as a
    whole: the new one is complete before the old one goes.
    """
    directory = Path(directory).absolute()
    if directory.exists() and not _replaceable(directory):
        raise ValueError(
            f"directory must be new, empty or written by an earlier save, {str(directory)!r} holds other files"
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    fresh, old = (directory.with_name(f".{directory.name}.{kind}-{os.getpid()}") for kind in ("new", "old"))
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        write_description(lm, fresh)
        with open_manager(fresh, use="save") as manager:
            save_step(manager, 0, unrolled(lm.params))
        if directory.exists():
            directory.rename(old)
        fresh.rename(directory)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _replaceable(directory: Path) -> bool:
    names = {entry.name for entry in directory.iterdir()} if directory.is_dir() else {""}
    return not names or (DESCRIPTION in names and names <= {DESCRIPTION, TOKENIZER, CHECKPOINTS})


def unrolled(params: Params) -> Params:
    """The form in which parameters are stored."""
    return params if execution_of(params) == "unrolled" else unstack_layers(params)


def write_description(lm: LanguageModel, directory: Path, dtype: str | None = None) -> None:
    """Everything of the format but the arrays: skipjax.json and the tokenizer. `dtype` is that of `lm` if None."""
    directory.mkdir(parents=True, exist_ok=True)
    if lm.tokenizer is not None:
        lm.tokenizer.save(directory / TOKENIZER)
    packages = ("jax", "flax", "orbax-checkpoint")
    description = {
        "format_version": FORMAT_VERSION,
        "config": lm.config.to_json(),
        "recorded": None if lm.recorded is None else lm.recorded.to_json(),
        "dtype": jnp.dtype(dtype or lm.dtype).name,
        "written_by": {"skipjax": _version("skipjax"), **{name: _version(name) for name in packages}},
    }
    write_json(directory / DESCRIPTION, description)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # a checkout that is not installed
        return "unknown"


def restore(directory: str | Path, dtype: Any = "float32", execution: Execution = "unrolled") -> LanguageModel:
    """The model in a directory written by `save` or by training: its best checkpoint, or the newest if none is rated.

    Args:
      directory: holds skipjax.json.
      dtype: of the parameters in memory, whatever they were stored in.
      execution: form of the parameters.
    Raises:
      FileNotFoundError: something is missing; the sentence names it.
      ValueError: a file is damaged, or written by a newer format.
    """
    directory = Path(directory).absolute()
    path = directory / DESCRIPTION
    description = read_json(path)
    if "exit_heads" in description:
        base = (description.get("base") or {}).get("model")
        raise ValueError(f"{directory}: holds exits only; load their model {base!r} with heads={str(directory)!r}")
    check_version(path, description)
    try:
        config = ModelConfig.from_json(description["config"])
        recorded = None if description["recorded"] is None else Recorded.from_json(description["recorded"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: damaged ({error})") from None
    folder = directory / TOKENIZER
    tokenizer = Tokenizer.from_directory(folder) if folder.is_dir() else None
    if tokenizer is None and folder.is_dir():
        raise FileNotFoundError(f"{folder}: its tokenizer files are missing")
    params = newest_params(directory, abstract_params(config, jnp.dtype(dtype)))
    if execution == "scanned":
        params = stack_layers(params)
    return LanguageModel(config, params, tokenizer, recorded)


def recommend(directory: str | Path, method: Method) -> None:
    """Writes into a checkpoint of `save` or of training that `method` is the one to decode with by default; what its
    weights were trained for stays. One that records nothing counts as trained for full depth.

    Raises as `restore`.
    """
    path = Path(directory).absolute() / DESCRIPTION
    description = read_json(path)
    check_version(path, description)
    before = description.get("recorded")
    recorded = Recorded(Full()) if before is None else Recorded.from_json(before)
    described = dataclasses.replace(recorded, recommended=method)
    write_json(path, {**description, "recorded": described.to_json()})


def check_version(path: Path, description: dict[str, Any]) -> None:
    """Raises ValueError if `description`, the content of the skipjax.json at `path`, is of another format."""
    version = description.get("format_version")
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{path}: format_version must be {FORMAT_VERSION} for this version of skipjax, got {version!r}"
        )


def newest_params(directory: Path, target: Any) -> Any:
    """The parameters of the best checkpoint in an absolute directory, or of the newest if none is rated, as `target`
    (`jax.ShapeDtypeStruct`s) wants them. Raises FileNotFoundError if there is none, ValueError if it does not fit."""
    with open_manager(directory, use="read") as manager:
        step = manager.best_step()
        step = manager.latest_step() if step is None else step
        if step is None:
            raise FileNotFoundError(f"{directory / CHECKPOINTS}: holds no complete checkpoint")
        return restore_step(manager, step, {"params": target})["params"]


def open_manager(directory: Path, *, keep: int = 1, use: Literal["read", "save", "train"]) -> ocp.CheckpointManager:
    """orbax's manager of DIR/checkpoints.

    For "train" it saves in the background and keeps the `keep` newest checkpoints and the one with the lowest loss. For
    "read" it touches nothing: it neither makes the folder nor removes anybody's half-written step. (orbax's own
    `read_only`, and rating checkpoints where none has a loss, would say so on every user's terminal.)
    """
    best_newest = policies.AnyPreservationPolicy(
        [
            policies.LatestN(keep),
            policies.BestN(get_metric_fn=_validation_loss, reverse=True, n=1, keep_checkpoints_without_metrics=False),
        ]
    )
    options = ocp.CheckpointManagerOptions(
        best_fn=None if use == "save" else _validation_loss,
        best_mode="min",
        create=use != "read",
        cleanup_tmp_directories=use == "train",
        enable_async_checkpointing=use == "train",
        preservation_policy=best_newest,
    )
    handlers = {
        "params": ocp.StandardCheckpointHandler(),
        "optimizer": ocp.StandardCheckpointHandler(),
        "progress": ocp.JsonCheckpointHandler(),
    }
    return ocp.CheckpointManager(directory / CHECKPOINTS, options=options, item_handlers=handlers)


def _validation_loss(metrics: dict[str, Any]) -> float:
    return metrics["validation_loss"]


def save_step(
    manager: ocp.CheckpointManager,
    step: int,
    params: Params,
    optimizer: Any = None,
    progress: dict[str, Any] | None = None,
    validation_loss: float | None = None,
) -> None:
    """Starts to save one step. Copies the arrays first, so that the caller may donate its own at once."""
    items = {"params": ocp.args.StandardSave(_copied(params))}
    if progress is not None:
        items["optimizer"] = ocp.args.StandardSave(_copied(optimizer))
        items["progress"] = ocp.args.JsonSave(progress)
    metrics = None if validation_loss is None else {"validation_loss": validation_loss}
    manager.save(step, args=ocp.args.Composite(**items), metrics=metrics, force=True)


def _copied(tree: Any) -> Any:
    # On CPU, orbax's host copy is the device buffer itself, and the next training step writes into donated buffers.
    return jax.tree.map(lambda leaf: np.array(leaf) if leaf.is_fully_addressable else leaf, tree)


def restore_step(manager: ocp.CheckpointManager, step: int, targets: dict[str, Any]) -> dict[str, Any]:
    """Items of one step, by name. A target is a tree of `jax.ShapeDtypeStruct`s, or None for a JSON item.

    Raises ValueError naming the directory if an item is missing, damaged or shaped otherwise than its target.
    """
    place = str(manager.directory / str(step))
    for name, target in targets.items():
        if target is not None:
            _check_shapes(manager, step, name, target, place)
    args = {
        name: ocp.args.JsonRestore() if target is None else ocp.args.StandardRestore(_placed(target))
        for name, target in targets.items()
    }
    try:
        return dict(manager.restore(step, args=ocp.args.Composite(**args)))
    except Exception as error:  # whatever its storage layers raise for damaged files
        raise ValueError(f"{place}: damaged checkpoint ({_first_line(error)})") from error


def _placed(target: Any) -> Any:
    """Says where arrays go: otherwise orbax takes the devices of the machine that wrote them."""
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), target)


def _check_shapes(manager: ocp.CheckpointManager, step: int, name: str, target: Any, place: str) -> None:
    try:
        stored = manager.item_metadata(step)[name]
        stored = getattr(stored, "tree", stored)
    except Exception as error:
        raise ValueError(f"{place}: damaged checkpoint ({_first_line(error)})") from error
    if stored is None:
        raise ValueError(f"{place}: incomplete checkpoint, it has no {name!r}")
    shapes = [_flat_shapes(tree) for tree in (stored, target)]
    for path in sorted(shapes[0].keys() | shapes[1].keys()):
        found, wanted = (side.get(path, "nothing") for side in shapes)
        if found != wanted:
            raise ValueError(f"{place}: does not fit the config, {name}{path} must be {wanted}, got {found}")


def _flat_shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """Shape of each leaf by its path; names and numbers of any kind of node are written alike."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: hasattr(node, "shape"))
    named = lambda key: getattr(key, "key", getattr(key, "name", getattr(key, "idx", None)))  # noqa: E731
    return {"".join(f"/{named(key)}" for key in path): tuple(leaf.shape) for path, leaf in leaves if leaf is not None}


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:300] or type(error).__name__
