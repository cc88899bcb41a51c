#!/usr/bin/env bash
# SkipDecode, multi-exit training, CALM and FREE on E2E from the same weights (SkipDecode, arXiv 2307.02628, section 4).
#
#   MODEL=smollm2-135m DATA=e2e OUT=runs LAYERS=30 bash infer/reproduce/e2e.sh
#
# MODEL is a Hugging Face directory or hub id; DATA a directory with trainset.csv.gz, devset.csv and testset_w_refs.csv.
# All methods start from one full-depth fine-tuning of STEPS updates and get STEPS more, full depth too.
# FEW=1 trains and scores only full depth after the first STEPS, and SkipDecode; the yardstick then had half the updates.
set -euo pipefail
: "${MODEL:?}" "${DATA:?}" "${OUT:?}" "${LAYERS:?}"
: "${STEPS:=150}" "${BATCH:=16}" "${RATE:=3e-4}" "${WARMUP:=20}" "${LIMIT:=300}" "${FEW:=}"
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
mkdir -p "$OUT"
[ "$LAYERS" -ge 5 ] || { printf 'LAYERS must be those of MODEL, at least 5, got %s\n' "$LAYERS" >&2; exit 2; }
third=$((LAYERS / 3)) half=$((LAYERS / 2)) fifth=$((LAYERS / 5))

common=(--data "$DATA/trainset.csv.gz" --eval-data "$DATA/devset.csv" --prompt-template "{mr} ->" --target-column ref
    --steps "$STEPS" --batch-size "$BATCH" --learning-rate "$RATE" --warmup-steps "$WARMUP"
    --max-prompt-tokens 64 --max-target-tokens 56 --max-shapes 5
    --eval-every 50 --eval-limit 64 --save-every 25 --keep 1 --log-every 5 --seed 0)
train start full --model "$MODEL"
for speedup in 2 3 5; do
    train "skipdecode-$speedup" skipdecode --model "$OUT/start" --speedup "$speedup" --horizon 56
done
if [ -z "$FEW" ]; then
    train full full --model "$OUT/start"
    train free free --model "$OUT/start" --shallow-layers "$third" --optimizer adamw
    train multi-exit multi-exit --model "$OUT/start"
fi

scoring=(--data "$DATA/testset_w_refs.csv" --prompt-template "{mr} ->" --target-column ref --limit "$LIMIT"
    --batch-size 16 --max-new-tokens 56)
# compared SUFFIX SAMPLING...: one table; unless FEW, the yardstick is full depth with as many updates as the others had.
compared() {
    local suffix=$1 runs=(start)
    shift
    # SkipDecode on weights that were never trained for it.
    score "start-$suffix" "$OUT/start" --method skipdecode --speedup 2,3,5 "$@"
    for speedup in 2 3 5; do
        score "skipdecode-$speedup-$suffix" "$OUT/skipdecode-$speedup" --method skipdecode --speedup "$speedup" "$@"
        runs+=("skipdecode-$speedup")
    done
    if [ -z "$FEW" ]; then
        score "full-$suffix" "$OUT/full" --method full "$@"
        score "multi-exit-$suffix" "$OUT/multi-exit" --method static-exit,calm --depth "$half,$third,$fifth" \
            --threshold 0.3,0.5,0.7,0.9 --min-depth "$fifth" "$@"
        score "free-$suffix" "$OUT/free" --method free --threshold 0.3,0.5,0.7,0.9 "$@"
        runs=(full "${runs[@]}" multi-exit free)
    fi
    local names directories=()
    for run in "${runs[@]}"; do directories+=("$OUT/$run-$suffix"); done
    names=$(IFS=,; printf '%s' "${runs[*]}")
    printf '\n== %s\n' "$suffix"
    skipjax compare "${directories[@]}" --name "$names" --out "$OUT/table-$suffix"
}
compared greedy
compared sampled --temperature 0.3 --top-p 0.7
