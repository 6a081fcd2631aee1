#!/usr/bin/env bash
# Unpacks tests/fixtures/archives/*.tar.xz beside them, where the tests look. Called by ./dev before every test run:
# does nothing when nothing changed, and is safe when two builds call it at once.
set -euo pipefail
cd "$(dirname "$0")/../tests/fixtures"
exec 9>.lock
flock 9

state=$(sha256sum archives/*.tar.xz ../../models/demo/*)
[ -f .unpacked ] && [ "$(cat .unpacked)" = "$state" ] && exit 0

# The archives hold every file of these folders: what is no longer packed must not linger.
rm -rf .unpacked .new
mkdir .new
for archive in archives/*.tar.xz; do
    tar --extract --xz --file "$archive" --directory .new
done
cp ../../models/demo/* .new/demo/compressed-tensors/
for folder in .new/*; do
    rm -rf "$(basename "$folder")"
    mv "$folder" .
done
rmdir .new
printf '%s\n' "$state" >.unpacked
