// Helpers for tests of kernels on the host: values of every element type, calls in several orders of blocks and
// threads, and the comparison with the CPU reference.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/half.h"
#include "kernels_on_host/device_array.h"
#include "kernels_on_host/machine/machine.h"

namespace metroplex::kernels_on_host {

using namespace kernels;

template <class T>
constexpr const char* kName = std::is_same_v<T, double> ? "double"
                              : std::is_same_v<T, Bf16> ? "bf16"
                              : std::is_same_v<T, F16>  ? "f16"
                                                        : "float";

template <class T>
std::vector<T> make_values(int64_t n, double step) {
  std::vector<T> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = store<T>(static_cast<Wide<T>>(3 * std::sin(step * static_cast<double>(i + 1))));
  return values;
}

// Both round to T once. The CPU's fast erf is off by 1.5e-7, other fp32 arithmetic by the few roundings of `slack`
// units. A value near the midpoint of two half numbers may round either way: to neighbors, which are 2^-7 (bf16) or
// 2^-10 (f16) relative apart just above a power of two. `parts`: sizes of the summands of the values, if these may
// cancel.
template <class T>
void expect_close(const std::vector<T>& got, const std::vector<T>& want, const std::string& what,
                  const std::vector<double>& parts = {}) {
  constexpr double kUnit = std::is_same_v<T, double> ? 0 : std::is_same_v<T, Bf16> ? 0x1p-7 : 0x1p-10;
  const double rounding = kIsHalf<T> ? kUnit : 0, slack = std::is_same_v<Wide<T>, double> ? 1e-12 : 4e-6;
  ASSERT_EQ(got.size(), want.size()) << what;
  double largest = 1e-3;
  for (size_t i = 0; i < want.size(); ++i)
    largest = std::max(largest, parts.empty() ? std::fabs(double{load(want[i])}) : parts[i]);
  for (size_t i = 0; i < want.size(); ++i) {
    const double size = parts.empty() ? std::fabs(double{load(want[i])}) : parts[i];
    const double bound = size * rounding + slack * largest + (std::is_same_v<T, F16> ? 0x1p-24 : 0);
    const double g = load(got[i]), w = load(want[i]);
    if (g == w) continue;  // infinities
    ASSERT_LE(std::fabs(g - w), bound) << what << " of " << kName<T> << " at " << i << " of " << want.size();
  }
}

// For sums of `terms` numbers whose absolute values add up to `size`. Each kernel result takes ceil(terms / 256)
// additions in a thread, or those of up to 8 neighbors more, and 12 over the block. Each CPU result takes terms / 16
// in a lane and 32 over lanes and the rest. Every addition rounds by half a unit of at most `size`, every term before
// that by 8 of its own.
template <class A>
void expect_sums(const std::vector<A>& got, const std::vector<A>& want, const std::string& what, int64_t terms,
                 const std::vector<double>& sizes) {
  const double unit = std::is_same_v<A, double> ? 0x1p-53 : 0x1p-24;
  const double roundings = static_cast<double>(terms / 256 + 1 + 8 + 12 + terms / 16 + 32 + 8);
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    if (got[i] == want[i]) continue;  // infinities
    ASSERT_LE(std::fabs(double{got[i]} - double{want[i]}), roundings * unit * sizes[i]) << what << " at " << i;
  }
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// call() returns a tuple of vectors, which must have the same bits in every order of blocks and threads. Returns the
// first one.
template <class Call>
auto run_all_orders(const Call& call) {
  set_order({});
  const auto first = call();
  for (const uint64_t seed : orders_to_try()) {
    if (seed == 0) continue;
    set_order({seed, {}});
    const auto again = call();
    [&]<size_t... i>(std::index_sequence<i...>) {
      EXPECT_TRUE((same_bits(std::get<i>(first), std::get<i>(again)) && ...))
          << "the result depends on the order of blocks or threads";
    }
    (std::make_index_sequence<std::tuple_size_v<decltype(call())>>());
  }
  set_order({});
  return first;
}

}  // namespace metroplex::kernels_on_host
