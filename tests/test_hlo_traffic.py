"""Bytes counted from a program's HLO, on a program small enough to count by hand."""

from __future__ import annotations

import pytest

from skipjax.hlo_traffic import Program

# A loop of unknown length; each of its steps runs a loop over 5 layers and then a conditional. In HBM: the weights
# (bfloat16 [8, 16, 128], 4096 bytes a layer) and the cache (rows of 64 padded to 128: 256 bytes). In fast memory, S(1):
# the activations.
HLO = """\
HloModule jit_decode, is_scheduled=true

%sliced (p0: bf16[8,16,128], p1: s32[]) -> bf16[1,16,128] {
  %p0 = bf16[8,16,128]{2,1,0:T(8,128)(2,1)} parameter(0)
  %p1 = s32[]{:T(128)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  ROOT %slice = bf16[1,16,128]{2,1,0:T(8,128)(2,1)} dynamic-slice(%p0, %p1, %zero, %zero), dynamic_slice_sizes={1,16,128}
}

%product (p0.1: bf16[8,16,128], p1.1: s32[], p2: bf16[8,128]) -> bf16[8,128] {
  %p0.1 = bf16[8,16,128]{2,1,0:T(8,128)(2,1)} parameter(0)
  %p1.1 = s32[]{:T(128)} parameter(1)
  %layer = bf16[1,16,128]{2,1,0:T(8,128)(2,1)} fusion(%p0.1, %p1.1), kind=kLoop, calls=%sliced
  %p2 = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(2)
  ROOT %convolution = bf16[8,128]{1,0:T(8,128)(2,1)} convolution(%p2, %layer), dim_labels=bf_io->bf
}

%layers (state: (s32[], bf16[8,128], bf16[8,16,128], bf16[64,64])) -> (s32[], bf16[8,128], bf16[8,16,128], bf16[64,64]) {
  %state = (s32[]{:T(128)}, bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, bf16[8,16,128]{2,1,0:T(8,128)(2,1)}, /*index=3*/bf16[64,64]{1,0:T(8,128)(2,1)}) parameter(0)
  %layer.1 = s32[]{:T(128)} get-tuple-element(%state), index=0
  %h = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} get-tuple-element(%state), index=1
  %weights = bf16[8,16,128]{2,1,0:T(8,128)(2,1)} get-tuple-element(%state), index=2
  %cache = bf16[64,64]{1,0:T(8,128)(2,1)} get-tuple-element(%state), index=3
  %h.1 = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} fusion(%weights, %layer.1, %h), kind=kOutput, calls=%product
  %new = bf16[8,64]{1,0:T(8,128)(2,1)S(1)} slice(%h.1), slice={[0:8], [0:64]}
  %one = s32[]{:T(128)} constant(1)
  %cache.1 = bf16[64,64]{1,0:T(8,128)(2,1)} dynamic-update-slice(%cache, %new, %layer.1, %one)
  %next = s32[]{:T(128)} add(%layer.1, %one)
  ROOT %out = (s32[]{:T(128)}, bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, bf16[8,16,128]{2,1,0:T(8,128)(2,1)}, /*index=3*/bf16[64,64]{1,0:T(8,128)(2,1)}) tuple(%next, %h.1, %weights, %cache.1)
}

%more (state.1: (s32[], bf16[8,128], bf16[8,16,128], bf16[64,64])) -> pred[] {
  %state.1 = (s32[]{:T(128)}, bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, bf16[8,16,128]{2,1,0:T(8,128)(2,1)}, /*index=3*/bf16[64,64]{1,0:T(8,128)(2,1)}) parameter(0)
  %count = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  %last = s32[]{:T(128)} constant(LAST)
  ROOT %less = pred[]{:T(512)} compare(%count, %last), direction=LT
}

%greedy (g: bf16[8,128]) -> bf16[8,128] {
  ROOT %g = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} parameter(0)
}

%sampled (d: bf16[8,128]) -> bf16[8,128] {
  %d = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %out.1 = bf16[8,128]{1,0:T(8,128)(2,1)} copy(%d)
  ROOT %back = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} copy(%out.1)
}

%step (all: (bf16[8,128], bf16[8,16,128], bf16[64,64], pred[])) -> (bf16[8,128], bf16[8,16,128], bf16[64,64], pred[]) {
  %all = (bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, bf16[8,16,128]{2,1,0:T(8,128)(2,1)}, bf16[64,64]{1,0:T(8,128)(2,1)}, pred[]{:T(512)}) parameter(0)
  %h.2 = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} get-tuple-element(%all), index=0
  %weights.1 = bf16[8,16,128]{2,1,0:T(8,128)(2,1)} get-tuple-element(%all), index=1
  %cache.2 = bf16[64,64]{1,0:T(8,128)(2,1)} get-tuple-element(%all), index=2
  %first = s32[]{:T(128)} constant(3)
  %start = (s32[]{:T(128)}, bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, bf16[8,16,128]{2,1,0:T(8,128)(2,1)}, /*index=3*/bf16[64,64]{1,0:T(8,128)(2,1)}) tuple(%first, %h.2, %weights.1, %cache.2)
  %loop = (s32[]{:T(128)}, bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, bf16[8,16,128]{2,1,0:T(8,128)(2,1)}, /*index=3*/bf16[64,64]{1,0:T(8,128)(2,1)}) while(%start), condition=%more, body=%layers
  %h.3 = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} get-tuple-element(%loop), index=1
  %cache.3 = bf16[64,64]{1,0:T(8,128)(2,1)} get-tuple-element(%loop), index=3
  %fetch = (bf16[16,64]{1,0:T(8,128)(2,1)S(1)}, bf16[64,64]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(%cache.3)
  %fetched = bf16[16,64]{1,0:T(8,128)(2,1)S(1)} copy-done(%fetch)
  %draw = pred[]{:T(512)} get-tuple-element(%all), index=3
  %h.4 = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} conditional(%draw, %h.3, %h.3), branch_computations={%sampled, %greedy}
  ROOT %all.1 = (bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, bf16[8,16,128]{2,1,0:T(8,128)(2,1)}, bf16[64,64]{1,0:T(8,128)(2,1)}, pred[]{:T(512)}) tuple(%h.4, %weights.1, %cache.3, %draw)
}

%unfinished (all.2: (bf16[8,128], bf16[8,16,128], bf16[64,64], pred[])) -> pred[] {
  %all.2 = (bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, bf16[8,16,128]{2,1,0:T(8,128)(2,1)}, bf16[64,64]{1,0:T(8,128)(2,1)}, pred[]{:T(512)}) parameter(0)
  ROOT %go = pred[]{:T(512)} get-tuple-element(%all.2), index=3
}

ENTRY %main (all.3: (bf16[8,128], bf16[8,16,128], bf16[64,64], pred[])) -> (bf16[8,128], bf16[8,16,128], bf16[64,64], pred[]) {
  %all.3 = (bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, bf16[8,16,128]{2,1,0:T(8,128)(2,1)}, bf16[64,64]{1,0:T(8,128)(2,1)}, pred[]{:T(512)}) parameter(0)
  ROOT %while = (bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, bf16[8,16,128]{2,1,0:T(8,128)(2,1)}, bf16[64,64]{1,0:T(8,128)(2,1)}, pred[]{:T(512)}) while(%all.3), condition=%unfinished, body=%step
}
"""  # noqa: E501

LAYER = 16 * 128 * 2 + 4  # a layer's weights, and the number that says which
UPDATE = 8 * 128 * 2 + 2 * 4  # rows written into the cache in place, and where
COUNTER = 3 * 4  # two numbers are read and one is written
FETCHED = 16 * 128 * 2  # a slice of the cache on its way into fast memory


def test_loops_count_as_often_as_they_run_and_slices_as_what_they_take():
    steps = Program(HLO.replace("LAST", "8")).loop_step_bytes()
    # The conditional is its cheaper branch, which moves nothing.
    assert steps == [5 * (LAYER + UPDATE + COUNTER) + FETCHED]


def test_a_loop_whose_length_is_no_constant():
    with pytest.raises(ValueError, match="the trip count of loop loop is not a constant"):
        Program(HLO.replace("constant(LAST)", "get-tuple-element(%state.1), index=0")).loop_step_bytes()
    with pytest.raises(ValueError, match="the trip count of loop while is not a constant"):
        Program(HLO.replace("LAST", "8")).total_bytes()
