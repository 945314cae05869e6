#!/bin/sh
# Install what benchmarks/peers.py compares fedkeel with, each into an environment of its own: DIR/flower and DIR/pfl.
# fedkeel goes into both, because its models and the bare loops are what the peers' clients train with.
#
#     benchmarks/install_peers.sh DIR [PYTHON]
set -u
dir=${1:?usage: install_peers.sh DIR [PYTHON]}
python=${2:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)
failed=0

install() {
    name=$1
    shift
    "$python" -m venv "$dir/$name" &&
        "$dir/$name/bin/pip" install --quiet -c "$root/constraints.txt" -e "$root" "$@" &&
        echo "$name: installed into $dir/$name" ||
        { echo "$name: could not be installed (see above)" >&2; failed=1; }
}

install flower "flwr[simulation]>=1.41,<1.43"
install pfl "pfl>=0.6,<0.7"
exit $failed
