# Sourced by the reproductions: every step is an ordinary skipjax command that is skipped once it is done and goes on
# where it was stopped, so a script can be killed at any time and started again.

# train NAME PROGRAM FLAGS...: checkpoint in $OUT/NAME; `common` holds the flags that all runs share.
train() {
    local name=$1 program=$2 resume=()
    shift 2
    local flags="$program ${common[*]} $*"
    if [ -e "$OUT/$name.trained" ]; then
        [ "$(cat "$OUT/$name.trained")" = "$flags" ] && return 0
        printf '%s was trained with other flags: give another OUT, or remove it and %s\n' "$OUT/$name" "$name.trained" >&2
        exit 2
    fi
    [ ! -d "$OUT/$name" ] || resume=(--resume)
    printf '\n== train %s\n' "$name"
    skipjax train "$program" "${common[@]}" "$@" --out "$OUT/$name" "${resume[@]}"
    printf '%s\n' "$flags" >"$OUT/$name.trained"
}

# score NAME MODEL FLAGS...: results in $OUT/NAME; `scoring` holds the flags that all evaluations share.
score() {
    local name=$1 model=$2
    shift 2
    printf '\n== evaluate %s\n' "$name"
    skipjax evaluate --model "$model" "${scoring[@]}" "$@" --out "$OUT/$name"
}
