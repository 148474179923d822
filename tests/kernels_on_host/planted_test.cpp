// Faults of every kind are found: by the watch with place and thread, by AddressSanitizer where they leave an array.
#include "base/error.h"
#include "kernels_on_host/far_array.h"
#include "kernels_on_host/planted.h"
#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host {
namespace {

constexpr int64_t kCount = 512, kRows = 5, kStride = int64_t{1} << 29;

void pairs(Fault fault) {
  const DeviceArray<float> x(made<float>(kCount, 0.3), Use::in, "x"),
      out(std::vector<float>(kCount), fault == Fault::between_blocks ? Use::both : Use::out, "out");
  planted_pairs(fault, x.data(), out.data(), kCount);
  const std::vector<float> from = x.values(), to = out.values();
  for (size_t i = 0; fault == Fault::none && i < kCount; ++i) ASSERT_EQ(to[i], from[i] + from[i ^ 1]) << i;
}

void rows(Fault fault) {
  const FarArray<uint16_t> x((kRows - 1) * kStride + 1, "x");
  planted_rows(fault, x.data(), kRows, kStride);
  for (int64_t row = 0; row < kRows; ++row) ASSERT_EQ(x.data()[row * kStride], row);
}

template <class Call>
std::string said(const Call& call) {
  try {
    call();
  } catch (const base::Error& error) { return error.what(); }
  return "nothing";
}

void expect_found(const std::string& what, const std::string& by) {
  EXPECT_NE(what.find(by), std::string::npos) << what << ", not: " << by;
}

TEST(PlantedFaults, WithoutOneNothingIsFound) {
  for (const uint64_t seed : {0, 1, 2}) {
    set_order({seed, {}});
    pairs(Fault::none);
    rows(Fault::none);
  }
  set_order({});
}

TEST(PlantedFaults, ABarrierThatSomeThreadsNeverReachIsAnErrorWithTheKernelsName) {
  const std::string what = said([] { pairs(Fault::lone_barrier); });
  expect_found(what, "kernel planted_pairs");
  expect_found(what, "waits at planted.cu:");
  expect_found(what, "has ended without coming there");
}

TEST(PlantedFaults, RacesAreFoundInAnyOrderOfThreads) {
  if (!watches()) return rows(Fault::none);  // the other program of these tests watches
  for (const uint64_t seed : {0, 1, 2, 3}) {
    set_order({seed, {}});
    expect_found(said([] { pairs(Fault::no_barrier); }), "shared memory");
    expect_found(said([] { pairs(Fault::between_blocks); }), "by block");
    expect_found(said([] { pairs(Fault::unwritten); }), "that nobody has written yet");
  }
  set_order({});
  expect_found(said([] { pairs(Fault::no_barrier); }), "nobody has written yet");
}

TEST(PlantedFaults, WhatLeavesAnArrayIsFound) {
  if (watches()) {
    expect_found(said([] { pairs(Fault::one_too_far); }),
                 "writes 4 bytes at a place outside all arrays: out[512] of 512");
    expect_found(said([] { pairs(Fault::extra_block); }),
                 "block 2, thread 0: reads 4 bytes at a place outside all arrays");
    expect_found(said([] { rows(Fault::narrow_stride); }), "writes 2 bytes at a place outside all arrays: x[-");
  } else {
    EXPECT_DEATH(pairs(Fault::one_too_far), "heap-buffer-overflow");
    EXPECT_DEATH(pairs(Fault::extra_block), "heap-buffer-overflow");
    EXPECT_DEATH(rows(Fault::narrow_stride), "AddressSanitizer");
  }
}

}  // namespace
}  // namespace metroplex::kernels_on_host
