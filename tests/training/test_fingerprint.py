"""A fingerprint tells weights apart, and nothing else."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from tiny_training import LLAMA, T5

from skipjax.decoder import init_params, stack_layers
from skipjax.fingerprint import fingerprint
from skipjax.language_model import LanguageModel
from skipjax.training import with_exit_heads


@pytest.mark.parametrize("config", [LLAMA, T5], ids=lambda config: config.family)
def test_form_type_and_exits_do_not_matter(config):
    params = init_params(config, 0)
    lm = LanguageModel(config, params)
    expected = fingerprint(lm)
    assert len(expected) == 64
    assert fingerprint(with_exit_heads(lm, [1], norm=True, classifier=True)) == expected
    assert fingerprint(LanguageModel(config, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params))) == expected
    assert fingerprint(LanguageModel(config, stack_layers(params))) == expected


def test_every_weight_and_the_config_matter():
    params = init_params(T5, 0)
    leaves, structure = jax.tree.flatten(params)
    found = {fingerprint(LanguageModel(T5, params))}
    for index, leaf in enumerate(leaves):
        changed = [*leaves]
        changed[index] = jnp.asarray(leaf.ravel().at[-1].add(1).reshape(leaf.shape))
        found.add(fingerprint(LanguageModel(T5, jax.tree.unflatten(structure, changed))))
    found.add(fingerprint(LanguageModel(dataclasses.replace(T5, norm_epsilon=1e-5), params)))
    assert len(found) == len(leaves) + 2
