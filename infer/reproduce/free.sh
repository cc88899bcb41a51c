#!/usr/bin/env bash
# FREE's ablations in small, on E2E with a T5 from random weights (FREE, arXiv 2310.05424, sections 4 and 5): kinds of
# distillation, depth of the shallow exit, thresholds, rollback, and CALM's state copying beside parallel decoding.
#
#   DATA=e2e OUT=runs bash infer/reproduce/free.sh
#
# DATA is a directory with trainset.csv.gz, devset.csv and testset_w_refs.csv. The config and tokenizer are those of the
# embedded T5: 2 encoder and 12 decoder layers.
set -euo pipefail
: "${DATA:?}" "${OUT:?}" "${STEPS:=600}" "${WARMUP:=100}" "${LIMIT:=300}"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/common.sh"
t5=$(python -c 'from skipjax.loading import EMBEDDED; print(EMBEDDED["embedded-t5"])')
mkdir -p "$OUT"

common=(--data "$DATA/trainset.csv.gz" --eval-data "$DATA/devset.csv" --prompt-template "{mr} ->" --target-column ref
    --init "$t5/config.json" --tokenizer "$t5" --steps "$STEPS" --batch-size 32 --optimizer adamw --learning-rate 2e-3
    --warmup-steps "$WARMUP" --max-target-tokens 64 --max-shapes 4
    --eval-every 300 --eval-limit 256 --save-every 100 --keep 1 --log-every 25 --seed 0)
scoring=(--data "$DATA/testset_w_refs.csv" --prompt-template "{mr} ->" --target-column ref --limit "$LIMIT"
    --batch-size 8 --max-new-tokens 56)

kinds=(none last unif dyna)
for kind in "${kinds[@]}"; do
    train "$kind" free --shallow-layers 3 --distillation "$kind"
    score "$kind-free" "$OUT/$kind" --method free --threshold 0.3,0.5,0.7,0.9
done
for depth in 2 6; do
    train "shallow-$depth" free --shallow-layers "$depth"
    score "shallow-$depth-free" "$OUT/shallow-$depth" --method free --threshold 0.3,0.5,0.7,0.9
done
# The adaptive threshold, rollback, and the same thresholds with CALM's state copying.
score dyna-adaptive "$OUT/dyna" --method free --adaptive
score dyna-rollback "$OUT/dyna" --method free --threshold 0.3,0.5 --rollback 1
score dyna-calm "$OUT/dyna" --method calm,static-exit --threshold 0.3,0.5,0.7,0.9 --min-depth 3 --depth 3

# table NAME RUN...: one table of several runs.
table() {
    local name=$1
    shift
    printf '\n== %s\n' "$name"
    skipjax compare "${@/#/$OUT/}" --out "$OUT/table-$name"
}
table distillation "${kinds[@]/%/-free}"
table shallow-depth shallow-2-free dyna-free shallow-6-free
table decoding dyna-free dyna-adaptive dyna-rollback dyna-calm
