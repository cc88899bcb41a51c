"""Converts a model between Hugging Face's form and skipjax's own.

    skipjax convert facebook/opt-125m models/opt-125m --check     # to orbax, ready for training and generation
    skipjax convert models/opt-125m exported --to huggingface     # and back

The source is loaded whole, and all weights are written in one type.
"""

from __future__ import annotations

from typing import Annotated

import typer

FORMS = ("orbax", "huggingface")


def convert(
    source: Annotated[str, typer.Argument(help="Hugging Face directory or hub id, or a skipjax directory.")],
    destination: Annotated[str, typer.Argument(help="Directory to write.")],
    to: Annotated[str, typer.Option(help="orbax, huggingface, or auto: the form that SOURCE does not have.")] = "auto",
    dtype: Annotated[str, typer.Option(help="Type to write; float32 holds every other exactly.")] = "float32",
    check: Annotated[
        bool, typer.Option("--check", help="Compare logits with transformers; needs torch installed.")
    ] = False,
) -> None:
    """Convert between Hugging Face's form and orbax."""
    import skipjax as sj
    from skipjax import checks, loading, verification

    checks.choice("--to", to, ("auto", *FORMS))
    directory = loading.model_directory(source)
    from_orbax = loading.is_checkpoint(directory)
    if to == "auto":
        to = "huggingface" if from_orbax else "orbax"
    if check and from_orbax and to == "orbax":
        raise ValueError("--check needs a Hugging Face model on one side, got a conversion from orbax to orbax")
    lm = sj.load(directory, dtype=dtype)
    write = sj.export_hf if to == "huggingface" else sj.save
    write(lm, destination)
    typer.echo(f"wrote {lm.num_parameters:,} parameters in {lm.dtype} to {destination} ({to})")
    if check:
        # transformers reads the side that it can, skipjax the other, so that both files are in the comparison.
        theirs, ours = (destination, directory) if from_orbax else (directory, destination)
        difference = verification.largest_logit_difference(sj.load(ours, dtype="float32"), theirs)
        typer.echo(f"largest difference between logits of skipjax and transformers: {difference:.3g}")
