#!/bin/sh
# Builds the model files anew from the published packages and compares them with SHA256SUMS.
#
# Usage: models/build/build.sh [directory for the result; default: a temporary one]
#
# Needs 64-bit Linux, Python 3.11 with venv, unzip, zstd 1.5, and access to PyPI. Copy the result
# over models/ only when SHA256SUMS and the table in providers/cascade/src/offline/models.rs are to
# change as well.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=${1:-$work/models}
mkdir -p "$out"
python=${PYTHON:-python3}

for tool in "$python" unzip zstd; do
    command -v "$tool" >/dev/null || { echo "build.sh needs $tool" >&2; exit 1; }
done

echo "Fetching the packages ..."
"$python" -m venv "$work/venv"
pip="$work/venv/bin/python -m pip --disable-pip-version-check -q"
$pip install --require-hashes --only-binary :all: -r "$here/requirements.txt"
$pip download --require-hashes --only-binary :all: --no-deps -d "$work" -r "$here/packages.txt"
for package in "$work"/*.whl; do
    unzip -q -o "$package" -d "$work/files"
done

echo "Converting Moonshine ..."
tiny="$work/files/moonshine_voice/assets/tiny-en"
"$work/venv/bin/python" "$here/convert_moonshine.py" "$tiny" "$work/onnx"
for part in encoder decoder; do
    zstd -q -19 -T1 -f "$work/onnx/moonshine-tiny-en.$part.onnx" \
        -o "$out/moonshine-tiny-en.$part.onnx.zst"
done
cp "$tiny/tokenizer.bin" "$out/moonshine-tiny-en.tokenizer.bin"

hibari="$work/files/hibari/assets"
cp "$hibari/hibari.onnx" "$out/hibari.onnx"
cp "$hibari/vocab.json" "$out/hibari.vocab.json"
cp "$hibari/oov.onnx" "$out/hibari.oov.onnx"
cp "$hibari/oov.json" "$out/hibari.oov.json"
cp "$work/files/silero_vad/data/silero_vad_16k_op15.onnx" "$out/"
cp "$here"/../*.LICENSE "$here"/../*.NOTICE "$out/"

echo "Comparing with SHA256SUMS ..."
(cd "$out" && sha256sum -c "$here/../SHA256SUMS")
