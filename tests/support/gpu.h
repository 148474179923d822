// For tests that compare a GPU with the CPU: without one, or without device code of ours, there is nothing to
// compare, and the test is skipped; a call that was refused as it should be is no comparison either.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "cuda/device.h"

#define MPX_NEED_GPU() \
  if (metroplex::cuda::device_count() == 0) GTEST_SKIP() << "no GPU"
#define MPX_NEED_GPU_KERNELS() \
  MPX_NEED_GPU();              \
  if (!metroplex::cuda::kernels::compiled()) GTEST_SKIP() << "built without nvcc"

namespace metroplex::cuda::kernels {

// What the error of a call says behind the kernel's name where no kernel can run; null where they can.
inline const char* expected_refusal() {
  if (!compiled()) return " is not in this program";
  return device_count() == 0 ? " was not launched" : nullptr;
}

// What a call says where it cannot run.
template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const base::Error& error) { return error.what(); }
  return "nothing";
}

}  // namespace metroplex::cuda::kernels
