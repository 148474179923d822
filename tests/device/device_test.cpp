// Queries about the GPU: values if there is one, an error message if there is none.
#include "device/device.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"

namespace metroplex::device::device_test {
namespace {

TEST(Device, AnswersWithAGpuAndWithoutOneEveryQuestionButTheirNumberSaysSo) {
  const int devices = device_count();
  ASSERT_GE(devices, 0);
  EXPECT_EQ(compute_capability() > 0, devices > 0);
  const std::function<void()> questions[] = {[] { current_stream(); }, [] { set_device(0); }, [] { synchronize(); },
                                             [] { allocator_peak(); }};
  for (const auto& ask : questions) {
    if (devices > 0) {
      EXPECT_NO_THROW(ask());
    } else {
      EXPECT_THROW(ask(), base::Error);
    }
  }
}

}  // namespace
}  // namespace metroplex::device::device_test
