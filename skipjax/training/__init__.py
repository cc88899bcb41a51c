"""Fine-tuning: data, objectives, optimizers, and the loop. Programs are in `train`."""

from skipjax.training.batches import choose_shapes, padding_share
from skipjax.training.curriculum import Curriculum, check_depth_flags, free, full_depth, heads, multi_exit, skipdecode
from skipjax.training.data import Examples, load_rows, prompts_and_targets, tokenize
from skipjax.training.free_loss import FreeLoss
from skipjax.training.optimizer import OptimizerSettings
from skipjax.training.start import check_exit_kinds, starting_point, with_exit_heads
from skipjax.training.trainer import RunSettings, check_directory, train
from skipjax.training.vocabulary import train_tokenizer

__all__ = [
    "Curriculum",
    "Examples",
    "FreeLoss",
    "OptimizerSettings",
    "RunSettings",
    "check_depth_flags",
    "check_directory",
    "check_exit_kinds",
    "choose_shapes",
    "free",
    "full_depth",
    "heads",
    "load_rows",
    "multi_exit",
    "padding_share",
    "prompts_and_targets",
    "skipdecode",
    "starting_point",
    "tokenize",
    "train",
    "train_tokenizer",
    "with_exit_heads",
]
