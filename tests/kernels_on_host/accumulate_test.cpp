#include "kernels/accumulate.h"

#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host::accumulate_test {
namespace {

// One addition in fp32, so both devices have the bits of the sum; a kernel that only writes must not read first.
template <class T>
void check(int64_t n, bool adds, size_t shift_out, size_t shift_x) {
  SCOPED_TRACE(testing::Message() << kName<T> << " " << n << " adds " << adds << " shifted " << shift_out << " "
                                  << shift_x);
  const std::vector<T> x = make_values<T>(n, 0.7);
  const std::vector<float> before = make_values<float>(n, 0.3);
  std::vector<float> want(before), on_cpu(before);
  for (size_t i = 0; i < want.size(); ++i) want[i] = adds ? before[i] + load(x[i]) : load(x[i]);
  add_elements<T>(on_cpu.data(), x.data(), n, adds);
  EXPECT_TRUE(same_bits(on_cpu, want)) << "on the CPU";
  const auto got = run_all_orders([&] {
    const DeviceArray<T> there(x, Use::in, "x", shift_x);
    const DeviceArray<float> out(before, adds ? Use::both : Use::out, "out", shift_out);
    add_elements_cuda<T>(out.data(), there.data(), n, adds, nullptr);
    return std::tuple{out.values()};
  });
  EXPECT_TRUE(same_bits(std::get<0>(got), want));
}

template <class T>
void check_all() {
  for (const bool adds : {false, true}) {
    for (const int64_t n : {0, 1, 7, 8, 9, 2047, 2048, 5003}) {
      check<T>(n, adds, 0, 0);
      check<T>(n, adds, 1, 0);
      check<T>(n, adds, 0, 1);
    }
  }
}

TEST(AccumulateOnHost, AddsOrWritesEveryHalfWhereverItLies) {
  check_all<Bf16>();
  check_all<F16>();
}

}  // namespace
}  // namespace metroplex::kernels_on_host::accumulate_test
