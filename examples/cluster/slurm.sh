#!/bin/bash
#SBATCH --job-name=fedkeel
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --mem=64G
#SBATCH --time=02:00:00
#SBATCH --signal=B:TERM@120
#
# A run of fedkeel on all machines of a SLURM job: starts a Ray cluster, runs on it, and stops it.
#
#     sbatch slurm.sh experiment.yaml rounds=500
#
# What is given goes to `fedkeel run`. Change the lines with #SBATCH, and ENVIRONMENT: a virtual environment with fedkeel
# and Ray that all machines see under this path. PORT is that of the head; if two jobs may share a machine, they need
# different ones. Two minutes before the time is up, the run saves a checkpoint and ends; `fedkeel run --resume` goes on.
set -euo pipefail
environment=${ENVIRONMENT:-$HOME/fedkeel}
port=${PORT:-6379}
patience=${PATIENCE:-120} # seconds in which all machines must have joined

# shellcheck disable=SC1091
source "$environment/bin/activate"
cpus=${SLURM_CPUS_PER_TASK:-1}
mb=${SLURM_MEM_PER_NODE:-$((${SLURM_MEM_PER_CPU:-0} * cpus))}
mapfile -t machines < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${machines[0]}
address=$(srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{ print $1 }')
export RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0 RAY_USAGE_STATS_ENABLED=0

limits=(--num-cpus="$cpus")
if ((mb > 0)); then # without these, Ray takes all memory of a machine for its own
    limits+=(--memory=$((mb * 734003)) --object-store-memory=$((mb * 314573)))
fi

started=()
stop() {
    # Ray's processes on a machine end with the srun that started them.
    ((${#started[@]})) && kill "${started[@]}" 2>/dev/null
    wait 2>/dev/null || true
}
trap stop EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" --output="ray-%j-%N.log" \
    ray start --head --node-ip-address="$address" --port="$port" "${limits[@]}" --include-dashboard=false --block &
started+=($!)
for machine in "${machines[@]:1}"; do
    srun --overlap --nodes=1 --ntasks=1 --nodelist="$machine" --output="ray-%j-%N.log" \
        ray start --address="$address:$port" "${limits[@]}" --block &
    started+=($!)
done

here() {
    ray status --address="$address:$port" 2>/dev/null | awk '/^Active:/ { on = 1 } /^Pending:/ { on = 0 } on && /node_/' | wc -l
}
for ((second = 0; $(here) < ${#machines[@]}; second += 2)); do
    ((second < patience)) || { echo "only $(here) of ${#machines[@]} machines joined within $patience s" >&2; exit 1; }
    sleep 2
done

# This script runs on the first machine, which is part of the cluster.
fedkeel run "$@" --set executor.kind=ray executor.address="$address:$port" &
run=$!
trap 'kill -TERM "$run" 2>/dev/null' TERM INT
code=0
wait "$run" || code=$?
while kill -0 "$run" 2>/dev/null; do # a signal ends the wait, not the run
    code=0
    wait "$run" || code=$?
done
exit "$code"
