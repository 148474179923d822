#!/usr/bin/env bash
# Installs the build's dependencies and prints only progress. A second run installs nothing.
#   scripts/setup.sh [--cpu | --cuda] [--transformers] [--browser]      default: cuda with an NVIDIA driver, else cpu
# Debian packages are installed by apt-get (as root or with sudo). The torch wheel is installed in a per-user folder;
# METROPLEX_DEPS changes its location. The last line of standard output is the folder of the wheel (…/torch) for
# -DTORCH_ROOT. --browser adds Chromium, which only the test of report pages uses. With --transformers, which the build does not need, the line before it is the folder of that package.
set -euo pipefail
shopt -s inherit_errexit
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
variant=
transformers=
browser=()
for arg in "$@"; do
  case "$arg" in
    --cpu) variant=cpu ;;
    --cuda) variant=full ;;
    --transformers) transformers=yes ;;
    --browser) browser=(chromium) ;;
    *) echo "setup.sh: unknown option '$arg'; it takes --cpu, --cuda, --transformers and --browser" >&2; exit 2 ;;
  esac
done
if [ -z "$variant" ]; then
  variant=cpu
  if [ -e /proc/driver/nvidia/version ]; then variant=full; fi
fi
say() { printf 'setup: %s\n' "$*" >&2; }
# Prints a command's last lines only if it fails.
quietly() {
  local log status=0
  log=$(mktemp)
  "$@" > "$log" 2>&1 < /dev/null || status=$?
  [ "$status" = 0 ] || { tail -n 20 "$log" >&2; say "this failed: $*"; }
  rm -f "$log"
  return "$status"
}

packages=(g++ cmake ninja-build make git python3 python3-pip ca-certificates procps ccache clang clang-format
  libclang-rt-14-dev pkg-config libcli11-dev libyaml-cpp-dev nlohmann-json3-dev libfmt-dev libpcre2-dev
  libutf8proc-dev libsentencepiece-dev libxxhash-dev libseccomp-dev libgtest-dev openmpi-bin "${browser[@]}")
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { say "these Debian packages are missing and there is neither root nor sudo: ${missing[*]}"; exit 1; }
    as_root=(sudo)
  fi
  say "installing Debian packages: ${missing[*]}"
  quietly "${as_root[@]}" apt-get update -qq
  quietly "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi

cache=${METROPLEX_DEPS:-${XDG_CACHE_HOME:-$HOME/.cache}/metroplex}
# wheels LIST NAME PACKAGE WHAT: installs scripts/requirements-LIST.txt in a cache folder and prints its path. The
# installation is complete if PACKAGE has a file .complete.
wheels() {
  local requirements=$root/scripts/requirements-$1.txt folder
  folder=$cache/$2-$(sha256sum "$requirements" | cut -c1-8)
  if [ ! -e "$folder/$3/.complete" ]; then
    mkdir -p "$cache"
    exec 9>"$cache/.lock"
    flock 9   # several working copies may share the folder
    if [ ! -e "$folder/$3/.complete" ]; then
      say "installing $4 into $folder"
      rm -rf "$folder.part"
      # The build only unpacks the torch wheel and never imports it, so any python3 with pip works.
      quietly env PIP_REQUIRE_VIRTUALENV=0 python3 -m pip install --disable-pip-version-check --no-deps --no-compile --target "$folder.part" \
        --only-binary=:all: --python-version 3.11 --implementation cp --abi cp311 --abi abi3 --abi none \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_25_x86_64 --platform manylinux_2_18_x86_64 \
        --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform manylinux_2_12_x86_64 --platform manylinux2010_x86_64 \
        --platform manylinux_2_5_x86_64 --platform manylinux1_x86_64 --require-hashes -r "$requirements"
      touch "$folder.part/$3/.complete"
      rm -rf "$folder"
      mv "$folder.part" "$folder"
    fi
    exec 9>&-
  fi
  echo "$folder"
}
case "$variant" in cpu) size="544 MB, 1.3 GB on disk" ;; full) size="2.7 GB, 4.6 GB on disk" ;; esac
torch=$(wheels "$variant" "torch-2.11.0-$variant" torch "the torch 2.11.0 wheel ($variant set: $size)")
if [ -n "$transformers" ]; then
  transformers=$(wheels transformers transformers transformers "transformers and megatron.core (48 MB, 172 MB on disk)")
  echo "$transformers"
fi
echo "$torch/torch"
