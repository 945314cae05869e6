#!/bin/sh
# The figures of docs/benchmarks.md, on a machine with nothing else to do: about 25 minutes on two cores.
#
#     benchmarks/install_peers.sh DIR
#     benchmarks/all.sh DIR [PART...]       # PART: speed peers methods choices scale cluster report
#
# PYTHON names the interpreter (.venv/bin/python), RESULTS the folder (benchmarks/results). At the end, tables.md in that
# folder has all tables, and docs/images/benchmarks.png is drawn anew.
set -u
dir=${1:?usage: all.sh DIR [PART...]}
shift
cd "$(dirname "$0")/.." || exit 1
python=${PYTHON:-.venv/bin/python}
results=${RESULTS:-benchmarks/results}
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
failed=0
mkdir -p "$results"
echo "load before: $(cut -d' ' -f1-3 /proc/loadavg 2>/dev/null)"

part() {
    name=$1
    shift
    begun=$(date +%s)
    "$@" || { echo "$name: FAILED" >&2; failed=1; }
    echo "== $name: $(($(date +%s) - begun)) s"
}

for each in ${*:-speed peers methods choices scale report}; do
    case $each in
    speed) part speed "$python" benchmarks/speed.py --json "$results/speed.json" ;;
    peers)
        part peers "$python" benchmarks/peers.py "$dir" --only W1,W2,W3,W5,P1 --loop both --repeats 2 --patience 60 \
            --contenders plain-2 plain-1 fedkeel pfl flower --json "$results/peers.json"
        ;;
    methods) part methods "$python" benchmarks/methods.py W1 --json "$results/methods.json" ;;
    choices) part choices "$python" benchmarks/choices.py --json "$results/choices.json" ;;
    scale) part scale "$python" benchmarks/scale.py --json "$results/scale.json" ;;
    cluster) part cluster "$python" benchmarks/cluster.py --json "$results/cluster.json" --model ;;
    report)
        "$python" benchmarks/report.py "$results" >"$results/tables.md" && cat "$results/tables.md"
        part figure "$python" benchmarks/speed.py --from "$results/speed.json" --peers "$results/peers.json" \
            --plot docs/images/benchmarks.png >/dev/null
        ;;
    *) echo "$each is not a part; choose from speed peers methods choices scale report" >&2 && exit 2 ;;
    esac
done
exit $failed
