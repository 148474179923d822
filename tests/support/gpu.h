// For tests that compare a GPU with the CPU: without one, or without device code of ours, there is nothing to
// compare.
#pragma once

#include <gtest/gtest.h>

#include "cuda/device.h"
#include "cuda/kernels/compiled.h"

#define MPX_NEED_GPU() \
  if (metroplex::cuda::device_count() == 0) GTEST_SKIP() << "no GPU"
#define MPX_NEED_GPU_KERNELS() \
  MPX_NEED_GPU();              \
  if (!metroplex::cuda::kernels::compiled()) GTEST_SKIP() << "built without nvcc"
