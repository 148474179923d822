// Helpers for tests that compare a GPU with the CPU. Without a GPU or compiled device code, such a test checks that
// the call fails with the expected error and is then skipped.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "device/device.h"
#include "kernels/compiled.h"

#define MPX_NEED_GPU() \
  if (metroplex::device::device_count() == 0) GTEST_SKIP() << "no GPU"
#define MPX_NEED_GPU_KERNELS() \
  MPX_NEED_GPU();              \
  if (!metroplex::kernels::compiled()) GTEST_SKIP() << "built without nvcc"

namespace metroplex::kernels {

// The error text after the kernel's name if no kernel can run; null if kernels can run.
inline const char* expected_refusal() {
  if (!compiled()) return " is not in this program";
  return device::device_count() == 0 ? " was not launched" : nullptr;
}

// The message of the error that the call throws if it cannot run.
template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const base::Error& error) { return error.what(); }
  return "nothing";
}

}  // namespace metroplex::kernels
