#!/usr/bin/env bash
# Loads directories written by metroplex with Hugging Face's transformers (tests/transformers), and renders the chat
# templates of tests/vectors/chat again. Loads checkpoints that metroplex wrote with megatron.core (tests/megatron_core).
# Installs these packages and the full torch wheel, whose Python part requires CPython 3.11. With another version it is
# skipped with a message.
#   scripts/transformers.sh [BUILD]      default build, which ./test.sh has built
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${1:-$root/build}
python=
for candidate in python3.11 python3; do
  if [ -z "$python" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2> /dev/null; then python=$candidate; fi
done
if [ -z "$python" ]; then
  echo "transformers: 1 skipped, there is no Python 3.11 here"
  exit 0
fi
mapfile -t folders < <("$root/scripts/setup.sh" --cuda --transformers)
[ "${#folders[@]}" = 2 ] || { echo "transformers.sh: setup.sh failed" >&2; exit 1; }
# -S excludes this machine's own packages.
export PYTHONPATH=$(dirname "${folders[1]}"):${folders[0]} PYTHONDONTWRITEBYTECODE=1
chats=$(mktemp -d)
trap 'rm -rf "$chats"' EXIT
"$python" -S "$root/tests/transformers/chat_vectors.py" "$chats"
diff -r -x README.md "$chats" "$root/tests/vectors/chat" || { echo "transformers.sh: transformers renders chats otherwise than recorded" >&2; exit 1; }
"$python" -S "$root/tests/transformers/round_trip.py" "$build/bin"
"$python" -S "$root/tests/megatron_core/load_written.py" "$build/bin"
