// Every kind of fault is detected: by the watch with location and thread, by AddressSanitizer if it leaves an array.
#include "base/error.h"
#include "kernels_on_host/far_array.h"
#include "kernels_on_host/planted.h"
#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host::planted_test {
namespace {

constexpr int64_t kCount = 512, kRows = 5, kStride = int64_t{1} << 29;

void pairs(Fault fault) {
  const DeviceArray<float> x(make_values<float>(kCount, 0.3), Use::in, "x"),
      out(std::vector<float>(kCount), fault == Fault::between_blocks ? Use::both : Use::out, "out");
  planted_pairs(fault, x.data(), out.data(), kCount);
  const std::vector<float> from = x.values(), to = out.values();
  for (size_t i = 0; fault == Fault::none && i < kCount; ++i) ASSERT_EQ(to[i], from[i] + from[i ^ 1]) << i;
}

void mirror(Fault fault) {
  constexpr int64_t kFew = 61;
  const DeviceArray<float> x(make_values<float>(kFew, 0.3), Use::in, "x"),
      out(std::vector<float>(kFew), Use::out, "out");
  planted_mirror(fault, x.data(), out.data(), kFew);
  for (int64_t i = 0; i < kFew; ++i) ASSERT_EQ(out.data()[i], x.data()[kFew - 1 - i]) << i;
}

void pack(Fault fault) {
  const DeviceArray<float> x(make_values<float>(5, 0.3), Use::in, "x"), out(std::vector<float>(4), Use::out, "out");
  planted_pack(fault, x.data(), out.data());
  for (int64_t i = 0; i < 4; ++i) ASSERT_EQ(out.data()[i], x.data()[i]) << i;
}

void tiles(Fault fault) {
  const std::vector<F16> values = make_values<F16>(256, 0.3);
  std::vector<uint16_t> bits;
  for (const F16 value : values) bits.push_back(value.bits);
  const DeviceArray<uint16_t> x(bits, Use::in, "x");
  const DeviceArray<float> out(std::vector<float>(256), Use::out, "out");
  planted_tiles(fault, x.data(), out.data());
  for (size_t i = 0; i < 256; ++i) {
    float sum = 0;  // products of half numbers are exact, and the machine adds in this order too
    for (size_t k = 0; k < 16; ++k) sum += load(values[i / 16 * 16 + k]) * load(values[i % 16 * 16 + k]);
    ASSERT_EQ(out.data()[i], sum) << i;
  }
}

void rows(Fault fault) {
  const FarArray<uint16_t> x((kRows - 1) * kStride + 1, "x");
  planted_rows(fault, x.data(), kRows, kStride);
  for (int64_t row = 0; row < kRows; ++row) ASSERT_EQ(x.data()[row * kStride], row);
}

template <class Call>
std::string error_text(const Call& call) {
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
    mirror(Fault::none);
    pack(Fault::none);
    tiles(Fault::none);
    rows(Fault::none);
  }
  set_order({});
}

TEST(PlantedFaults, ABarrierThatSomeThreadsNeverReachIsAnErrorWithTheKernelsName) {
  const std::string what = error_text([] { pairs(Fault::lone_barrier); });
  expect_found(what, "kernel planted_pairs");
  expect_found(what, "waits at planted.cu:");
  expect_found(what, "has ended without coming there");
}

TEST(PlantedFaults, RacesAreFoundInAnyOrderOfThreads) {
  if (!watches()) return rows(Fault::none);  // the other program of these tests watches
  for (const uint64_t seed : {0, 1, 2, 3}) {
    set_order({seed, {}});
    expect_found(error_text([] { pairs(Fault::no_barrier); }), "shared memory");
    expect_found(error_text([] { pairs(Fault::between_blocks); }), "by block");
    expect_found(error_text([] { pairs(Fault::unwritten); }), "that no thread has written yet");
  }
  set_order({});
  expect_found(error_text([] { pairs(Fault::no_barrier); }), "no thread has written yet");
}

TEST(PlantedFaults, WhatLeavesAnArrayIsFound) {
  if (watches()) {
    expect_found(error_text([] { pairs(Fault::one_too_far); }),
                 "writes 4 bytes at a place outside all arrays: out[512] of 512");
    expect_found(error_text([] { pairs(Fault::extra_block); }),
                 "block 2, thread 0: reads 4 bytes at a place outside all arrays");
    expect_found(error_text([] { rows(Fault::narrow_stride); }), "writes 2 bytes at a place outside all arrays: x[-");
  } else {
    EXPECT_DEATH(pairs(Fault::one_too_far), "heap-buffer-overflow");
    EXPECT_DEATH(pairs(Fault::extra_block), "heap-buffer-overflow");
    EXPECT_DEATH(rows(Fault::narrow_stride), "AddressSanitizer");
  }
}

TEST(PlantedFaults, WhatLeavesSharedMemoryIsFound) {
  if (watches()) {
    expect_found(error_text([] { mirror(Fault::beyond_room); }), "writes 4 bytes at a place outside all arrays");
    // The arrays of a kernel are adjacent in the program's memory; only the sanitizer separates them.
    expect_found(error_text([] { mirror(Fault::beyond_array); }), "that no thread has written yet");
  } else {
    EXPECT_DEATH(mirror(Fault::beyond_room), "use-after-poison");
    EXPECT_DEATH(mirror(Fault::beyond_array), "out of bounds");
  }
}

TEST(PlantedFaults, AccessesThatAGpuRefusesAreFound) {
  if (watches()) {
    expect_found(error_text([] { pack(Fault::unaligned); }), "reads 16 bytes at x[1], which is not aligned to that");
  } else {
    EXPECT_DEATH(pack(Fault::unaligned), "misaligned address");
  }
}

TEST(PlantedFaults, TilesThatTensorCoresDoNotTakeAreFound) {
  expect_found(error_text([] { tiles(Fault::tile_between); }), "does not begin at a multiple of 32 bytes");
  expect_found(error_text([] { tiles(Fault::tile_rows); }), "not multiples of 16 bytes apart");
  expect_found(error_text([] { tiles(Fault::tile_lane); }), "lanes of a warp move different tiles");
  expect_found(error_text([] { tiles(Fault::tile_warp); }), "a warp of which a thread has ended");
  if (watches()) expect_found(error_text([] { tiles(Fault::tile_at_once); }), "reads 4 bytes at shared memory");
}

}  // namespace
}  // namespace metroplex::kernels_on_host::planted_test
