#!/bin/sh
# Build sdist and wheel into dist/, and run a small demo from each in an otherwise empty
# environment. Also write dist/sbom.json, which lists what the wheel installs, in CycloneDX format.
set -eu
root=$(pwd)
tools=$root/.venv-release/bin
clean=$(mktemp -d)
trap 'rm -rf "$clean"' EXIT

install() {
    "$clean/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        -c "$root/constraints.txt" "$@"
}

works() {
    mkdir "$clean/$1"
    cd "$clean/$1"
    env -i PATH="$clean/venv/bin:/usr/bin:/bin" HOME="$clean" OMP_NUM_THREADS=1 sh -euc '
        pubswap --version
        python -c "from pubswap import Coordinator, Federation"
        pubswap demo --rounds 1 --local-steps 4 --clients 2 > demo.log 2>&1 || { cat demo.log; exit 1; }
        tail -n 2 demo.log
        test -s demo-out/adapter/adapter_model.safetensors'
    cd "$root"
}

rm -rf dist
"$tools/python" -m build --outdir dist . > "$clean/build.log" 2>&1 || { cat "$clean/build.log"; exit 1; }
python3 -m venv "$clean/venv"
install "$(grep '^torch==' constraints.txt)"
install "$(ls dist/*.whl)[server,client,tasks]"
install --no-deps reasoning-gym
echo "From the wheel:"
works wheel
"$tools/cyclonedx-py" environment "$clean/venv/bin/python" --pyproject pyproject.toml \
    --output-file dist/sbom.json
install --no-deps --force-reinstall dist/*.tar.gz
echo "From the sdist:"
works sdist
ls -l dist
