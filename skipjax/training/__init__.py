"""Fine-tuning: data, loss with depth masks, optimizers, and the loop. Programs are in `train`."""

from skipjax.training.batches import choose_shapes, padding_share
from skipjax.training.data import Examples, load_rows, prompts_and_targets, tokenize
from skipjax.training.depths import Depths, check_depth_flags, full_depth, skipdecode_depths
from skipjax.training.optimizer import OptimizerSettings
from skipjax.training.start import starting_point
from skipjax.training.trainer import RunSettings, check_directory, train
from skipjax.training.vocabulary import train_tokenizer

__all__ = [
    "Depths",
    "Examples",
    "OptimizerSettings",
    "RunSettings",
    "check_depth_flags",
    "check_directory",
    "choose_shapes",
    "full_depth",
    "load_rows",
    "padding_share",
    "prompts_and_targets",
    "skipdecode_depths",
    "starting_point",
    "tokenize",
    "train",
    "train_tokenizer",
]
