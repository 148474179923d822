#!/usr/bin/env bash
# Builds the parts of the CUDA variant that the CPU variant lacks. The modules device, kernels, graph and comm, the .cu
# files and all GPU suites must compile, and the suites of these modules must link. The libraries must define all symbols that the
# CPU variant defines in its stubs no_*.cpp. The other modules are equal in both. The .cu files are compiled for two
# architectures, unless CUDAARCHS names others; test.sh --cuda compiles them for all.
#   scripts/cuda_objects.sh [CPU_BUILD]      default build, which ./test.sh has built
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cpu=${1:-$root/build}
cuda=$root/build-cuda
export CUDAARCHS=${CUDAARCHS:-80-real;90a-real}
"$root/scripts/build.sh" --cuda --dir "$cuda" --target metroplex_comm --target kernels_gpu_test --target graph_gpu_test --target comm_gpu_test
mapfile -t suites < <(ninja -C "$cuda" -t targets all | sed -n 's/^\(CMakeFiles\/[a-z]*_gpu_test\.dir\/.*\.o\): .*/--target \1/p')
[ "${#suites[@]}" -gt 5 ] || { echo "cuda_objects.sh: objects of the GPU suites of six modules were expected, not ${#suites[@]}" >&2; exit 1; }
"$root/scripts/build.sh" --cuda --dir "$cuda" ${suites[@]}
[ -e "$cuda/libmetroplex_cuda_kernels.a" ] || { echo "cuda_objects.sh: no nvcc here, the .cu files were not compiled" >&2; exit 1; }
defined() { nm -gC --defined-only "$@" 2> /dev/null | sed -n 's/^[0-9a-f]* [Ti] //p' | grep '^metroplex::' | sort -u; }
missing=$(comm -23 <(defined "$cpu"/libmetroplex_{device,kernels,graph,comm}.a) <(defined "$cuda"/libmetroplex_{device,kernels,graph,comm,cuda_kernels}.a))
[ -z "$missing" ] || { printf 'The CUDA variant lacks what a stand-in of the CPU one defines:\n%s\n' "$missing" >&2; exit 1; }
echo "CUDA variant: compiled; $(defined "$cpu"/libmetroplex_{device,kernels,graph,comm}.a | wc -l) functions of the CPU variant are all there"
