// Attributes that compile a function for several instruction sets and pick one when the program starts. Not on
// templates: the compiler makes the clones from plain functions.
#pragma once

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && !defined(__CUDACC__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(METROPLEX_KERNELS_ON_HOST)
#define MPX_CLONES(...) __attribute__((target_clones(__VA_ARGS__)))
#else
#define MPX_CLONES(...)
#endif

#define MPX_VECTOR_CLONES MPX_CLONES("default", "avx2", "avx512f")
// For numbers of 8 and 16 bits, which want operations that avx512f alone lacks.
#define MPX_HALF_CLONES MPX_CLONES("default", "avx2", "arch=x86-64-v4")
