// Sums of the shards of a half gradient that a rank received from all ranks, and the gradient sums of the same pass.
#include "kernels/accumulate.h"
#include "kernels/optimizer_step.h"
#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host::shard_sums_test {
namespace {

// A shard of `size` elements from each rank. Ranges (begin, n) of it are parameters; the other elements are padding.
struct Form {
  int ranks = 2;
  bool adds = false;
  size_t shift = 0;  // elements by which all arrays begin after a multiple of 64 bytes
  int64_t size = 0;
  std::vector<std::pair<int64_t, int64_t>> ranges;
};

// Magnitudes from 2^-12 to 2^12. Every 13th element is zero. Every 5th element of ranks 0 and 1 is 2^13 and -2^13,
// which cancel only if rank 2 is added after both: before, it would lose bits below 2^-10.
template <class T>
std::vector<T> make_shards(int ranks, int64_t size) {
  std::vector<T> values = make_values<T>(ranks * size, 0.7);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = store<T>(i % 13 == 4 ? 0.0F : std::ldexp(load(values[i]), static_cast<int>(i * 7 % 25) - 12));
  const auto shard = static_cast<size_t>(size);
  for (size_t i = 2; i < shard && ranks > 2; i += 5)
    values[i] = store<T>(0x1p13F), values[shard + i] = store<T>(-0x1p13F);
  return values;
}

template <class T>
T expected(const std::vector<T>& received, T before, const Form& form, int64_t i) {
  const auto shard = [&](int64_t rank) { return load(received[static_cast<size_t>(rank * form.size + i)]); };
  float sum = shard(0);
  for (int rank = 1; rank < form.ranks; ++rank) sum += shard(rank);
  const T rounded = store<T>(sum);
  return form.adds ? store<T>(load(before) + load(rounded)) : rounded;
}

template <class T>
constexpr Number kNumber = std::is_same_v<T, Bf16> ? Number::bf16 : Number::f16;

using Sums = std::vector<GradientSums>;
constexpr GradientSums kUnset{7, 7, 7};

// `out` and `sums` [blocks of all ranges] of a call.
template <class T>
std::vector<ShardSum> make_sums(const Form& form, T* out, GradientSums* sums) {
  std::vector<ShardSum> all;
  for (const auto& [begin, n] : form.ranges) {
    all.push_back({begin, n, out + begin, sums});
    sums += gradient_sums_blocks(n);
  }
  return all;
}

template <class T>
GradientSums norm_sums(const std::vector<ShardSum>& all, bool from_sums, bool on_device) {
  std::vector<GradientRange> ranges;
  for (const ShardSum& sum : all)
    ranges.push_back({from_sums ? static_cast<const void*>(sum.sums) : sum.out, kNumber<T>, sum.n, true, from_sums});
  int64_t blocks = 0;
  for (const ShardSum& sum : all) blocks += gradient_sums_blocks(sum.n);
  const DeviceArray<GradientSums> total({GradientSums{}}, Use::both, "total"),
      workspace(Sums(static_cast<size_t>(blocks)), Use::out, "workspace");
  if (on_device) gradient_sums_cuda(ranges, {total.data(), workspace.data()}, nullptr);
  else add_gradient_sums(ranges, {total.data(), nullptr});
  return total.values()[0];
}

template <class T>
void check(const Form& form) {
  SCOPED_TRACE(testing::Message() << kName<T> << ", " << form.ranks << " ranks, " << form.size << " elements, adds "
                                  << form.adds << ", shift " << form.shift);
  const std::vector<T> received = make_shards<T>(form.ranks, form.size);
  const std::vector<T> before = make_values<T>(form.size, 0.4);
  std::vector<T> want = before, on_cpu = before;
  int64_t blocks = 0;
  for (const auto& [begin, n] : form.ranges) {
    for (int64_t i = begin; i < begin + n; ++i) {
      T& element = want[static_cast<size_t>(i)];
      element = expected(received, element, form, i);
    }
    blocks += gradient_sums_blocks(n);
  }
  Sums cpu_sums(static_cast<size_t>(blocks), kUnset);
  const std::vector<ShardSum> all = make_sums(form, on_cpu.data(), cpu_sums.data());
  sum_shards(all, {received.data(), kNumber<T>, form.ranks, form.size, form.adds});
  EXPECT_TRUE(same_bits(on_cpu, want)) << "on the CPU";
  const GradientSums cpu = norm_sums<T>(all, false, false);
  EXPECT_TRUE(same_bits<GradientSums>({norm_sums<T>(all, true, false)}, {cpu})) << "on the CPU";
  const auto got = run_all_orders([&] {
    const DeviceArray<T> there(received, Use::in, "received", form.shift), out(before, Use::both, "out", form.shift);
    const DeviceArray<GradientSums> sums(cpu_sums, Use::out, "sums");
    const std::vector<ShardSum> device = make_sums(form, out.data(), sums.data());
    sum_shards_cuda(device, {there.data(), kNumber<T>, form.ranks, form.size, form.adds}, nullptr);
    return std::tuple{out.values(), Sums{norm_sums<T>(device, true, true), norm_sums<T>(device, false, true)}};
  });
  EXPECT_TRUE(same_bits(std::get<0>(got), want));
  const GradientSums &from_sums = std::get<1>(got)[0], &from_gradient = std::get<1>(got)[1];
  // Each of two sums of n positive numbers is off by less than n roundings.
  const double bound = 2 * static_cast<double>(form.size) * 0x1p-53 * cpu.sum_of_squares;
  for (const GradientSums& sums : {from_sums, from_gradient}) {
    EXPECT_NEAR(sums.sum_of_squares, cpu.sum_of_squares, bound);
    EXPECT_EQ(sums.num_zeros, cpu.num_zeros);
    EXPECT_EQ(sums.num_nonfinite, cpu.num_nonfinite);
  }
  // Both kernels read packs of the same ranges and thus add in the same order.
  if (form.shift == 0 && form.size % 8 == 0) { EXPECT_EQ(from_sums.sum_of_squares, from_gradient.sum_of_squares); }
}

TEST(ShardSumsOnHost, AreRoundedOnceInTheOrderOfTheRanks) {
  for (const int ranks : {1, 2, 3, 5}) {
    for (const bool adds : {false, true}) {
      for (const size_t shift : {0, 1}) {
        for (const int64_t size : {1720, 1723}) {
          // Padding before, between and after; 3 and 700 do not fill packs.
          const Form form{ranks, adds, shift, size, {{8, 700}, {712, 3}, {720, 0}, {720, 980}}};
          check<Bf16>(form);
          check<F16>(form);
        }
      }
    }
  }
  check<Bf16>({3, true, 0, 40016, {{0, 16384}, {16384, 16385}, {32776, 7240}}});
}

// More ranges than one launch handles.
TEST(ShardSumsOnHost, ManyRangesAreSummedAsEachAlone) {
  Form form;
  for (int64_t i = 0; i < 205; ++i) {
    const int64_t n = i % 9 == 4 ? 0 : i * 37 % 301;
    form.ranges.emplace_back(form.size, n);
    form.size += (n + 63) / 64 * 64;
  }
  check<Bf16>(form);
}

// The sum of two finite numbers may overflow; infinities of two signs give NaN. Padding is not counted.
TEST(ShardSumsOnHost, BadElementsAreCounted) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<F16> received(16, store<F16>(0.0F));
  const auto set = [&](size_t i, float first, float second) {
    received[i] = store<F16>(first), received[8 + i] = store<F16>(second);
  };
  set(0, 60000, 60000), set(1, inf, -inf), set(2, 2, -2), set(3, -0.0F, -0.0F), set(4, 3, 4), set(5, inf, inf);
  std::vector<F16> out(8);
  GradientSums sums = kUnset;
  sum_shards({{0, 5, out.data(), &sums}}, {received.data(), Number::f16, 2, 8, false});
  EXPECT_EQ(sums.num_nonfinite, 2);
  EXPECT_EQ(sums.num_zeros, 2);
  EXPECT_EQ(out[3].bits, 0x8000);  // as the sum of the two: not added to a positive zero
  EXPECT_EQ(out[5].bits, 0);
  const auto got = run_all_orders([&] {
    const DeviceArray<F16> there(received, Use::in, "received"), result(out, Use::both, "out");
    const DeviceArray<GradientSums> place({kUnset}, Use::out, "sums");
    sum_shards_cuda({{0, 5, result.data(), place.data()}}, {there.data(), Number::f16, 2, 8, false}, nullptr);
    return std::tuple{result.values(),
                      std::vector<int64_t>{place.values()[0].num_nonfinite, place.values()[0].num_zeros}};
  });
  EXPECT_EQ(std::get<1>(got), (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(std::get<0>(got)[3].bits, 0x8000);
}

// Without a place for gradient sums only the shards are summed. Ranges need not be aligned like their results.
TEST(ShardSumsOnHost, NeedNoGradientSums) {
  const std::vector<Bf16> received = make_shards<Bf16>(2, 800);
  std::vector<Bf16> want(792);
  sum_shards({{1, 792, want.data()}}, {received.data(), Number::bf16, 2, 800, false});
  const auto got = run_all_orders([&] {
    const DeviceArray<Bf16> there(received, Use::in, "received"), out(want, Use::out, "out");
    sum_shards_cuda({{1, 792, out.data()}}, {there.data(), Number::bf16, 2, 800, false}, nullptr);
    return std::tuple{out.values()};
  });
  EXPECT_TRUE(same_bits(std::get<0>(got), want));
}

// One pass moves 2 * ranks + 2 bytes per element, also for the norm. Passes over an fp32 sum move 10 * ranks + 2:
// each rank's shard is read, and the sum is written and, except for the first rank, read. Then the sum is read and
// the gradient written. The norm reads 2 more.
TEST(ShardSumsOnHost, OnePassReadsEachShardOnce) {
  constexpr int64_t kCount = 2 * kSumsBlock, kOfSums = sizeof(GradientSums), kBlocks = 2;
  if (!watches()) return;
  const auto bytes = [](const char* name) { return static_cast<int64_t>(traffic().at(name).bytes); };
  for (const int ranks : {2, 4}) {
    const DeviceArray<Bf16> received(make_shards<Bf16>(ranks, kCount), Use::in, "received"),
        out(std::vector<Bf16>(kCount), Use::both, "out");
    const DeviceArray<float> wide(std::vector<float>(kCount), Use::out, "wide");
    const DeviceArray<GradientSums> sums(Sums(3 + kBlocks), Use::both, "sums");
    set_order({});
    traffic().clear();
    for (int rank = 0; rank < ranks; ++rank)
      add_elements_cuda<Bf16>(wide.data(), received.data() + rank * kCount, kCount, rank > 0, nullptr);
    gradient_sums_cuda({{out.data(), Number::bf16, kCount}}, {sums.data(), sums.data() + 1}, nullptr);
    EXPECT_EQ(bytes("add_elements"), (10 * ranks - 4) * kCount);  // and 6 * kCount for the copy to bf16
    EXPECT_EQ(bytes("gradient_sums"), 2 * kCount + kOfSums * kBlocks);
    traffic().clear();
    const std::vector<ShardSum> all{{0, kCount, out.data(), sums.data() + 3}};
    sum_shards_cuda(all, {received.data(), Number::bf16, ranks, kCount, false}, nullptr);
    gradient_sums_cuda({{sums.data() + 3, Number::bf16, kCount, true, true}}, {sums.data(), sums.data() + 1},
                       nullptr);
    EXPECT_EQ(bytes("sum_shards"), (2 * ranks + 2) * kCount + kOfSums * kBlocks);
    EXPECT_EQ(bytes("gradient_sums"), 2 * kOfSums * kBlocks);
    traffic().clear();
    sum_shards_cuda(all, {received.data(), Number::bf16, ranks, kCount, true}, nullptr);
    EXPECT_EQ(bytes("sum_shards"), (2 * ranks + 4) * kCount + kOfSums * kBlocks);
  }
}

}  // namespace
}  // namespace metroplex::kernels_on_host::shard_sums_test
