// Norms of queries and keys in split_heads and join_heads.
#include <algorithm>
#include <array>
#include <cmath>
#include <deque>

#include "kernels/heads.h"
#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host::normed_heads_test {
namespace {

// Queries, gates, keys and values of 2 samples; queries and keys are normalized.
template <class T>
class NormedHeads {
 public:
  using A = Wide<T>;
  NormedHeads(HeadsShape shape, const std::array<int64_t, 4>& heads, bool one_plus)
      : shape_(shape), heads_(heads), one_plus_(one_plus) {
    shape_.sequence = 3, shape_.batch = 2;
    cos_ = make_values<A>(shape_.sequence * shape_.rotary / 2, 0.2);
    sin_ = make_values<A>(shape_.sequence * shape_.rotary / 2, 0.9);
    weight_ = make_values<T>(shape_.head_dim, 0.45);
    for (size_t which = 0; which < heads.size(); ++which) {
      parts_[which] = make_values<T>(count(which) * shape_.head_dim, 0.3 + 0.1 * static_cast<double>(which));
      rstd_[which] = std::vector<A>(static_cast<size_t>(is_normed(which) ? count(which) : 0));
    }
    fused_ = make_values<T>(6 * shape_.groups * (heads[0] + heads[1] + heads[2] + heads[3]) * shape_.head_dim, 0.7);
  }

  // `shift`: of all arrays except the weight.
  void check(size_t shift, size_t weight_shift) {
    std::array<std::vector<T>, 4> split = parts_;
    std::vector<T> joined = fused_;
    std::array<std::vector<A>, 4> lines;
    lines[0] = lines[2] = std::vector<A>(weight_.size());
    const Pointers cpu{cos_.data(), sin_.data(), weight_.data()};
    split_heads<T>(fused_.data(), regions(split, rstd_, lines, cpu), shape_);
    HeadRegions<T> gradients = regions(parts_, rstd_, lines, cpu);
    gradients.raw = fused_.data();
    join_heads<T>(joined.data(), gradients, shape_);
    const auto got = run_all_orders([&] { return run_on_host(shift, weight_shift); });
    expect_split(std::get<0>(got), split[0], 0);
    expect_split(std::get<1>(got), split[2], 2);
    EXPECT_TRUE(same_bits(std::get<2>(got), split[1]) && same_bits(std::get<3>(got), split[3]));
    expect_close(std::get<4>(got), joined, "joined heads", std::vector<double>(joined.size(), gradient_size()));
    for (const size_t which : {size_t{0}, size_t{2}}) {
      const std::vector<A>& sums = which == 0 ? std::get<5>(got) : std::get<6>(got);
      // Rotated gradients of a half type may differ by their rounding.
      const double neighbor = std::is_same_v<T, Bf16> ? 0x1p-7 : std::is_same_v<T, F16> ? 0x1p-10 : 0;
      const double unit = std::is_same_v<A, double> ? 0x1p-53 : 0x1p-24;
      const auto terms = static_cast<double>(count(which));
      const double bound = terms * (terms * unit + 16 * unit + neighbor) * kRotated * normal_size();
      ASSERT_EQ(sums.size(), weight_.size());
      for (size_t i = 0; i < sums.size(); ++i) EXPECT_NEAR(sums[i], lines[which][i], bound) << which << " at " << i;
    }
  }

 private:
  static constexpr double kRotated = 9 * 2;  // bounds a cos - c sin: two products of at most 9
  struct Pointers {
    const A *cos, *sin;
    const T* weight;
  };

  static bool is_normed(size_t which) { return which % 2 == 0; }
  int64_t count(size_t which) const { return 6 * shape_.groups * heads_[which]; }
  // A normalized value is at most sqrt(head_dim); weights are at most 3, or 4 with one_plus.
  double normal_size() const { return std::sqrt(static_cast<double>(shape_.head_dim)); }
  double largest_rstd() const {
    A largest = 0;
    for (const auto& of : rstd_)
      largest = std::max(largest, of.empty() ? A(0) : *std::max_element(of.begin(), of.end()));
    return double{largest};
  }
  double gradient_size() const { return largest_rstd() * 4 * kRotated * (1 + normal_size()); }

  HeadRegions<T> regions(std::array<std::vector<T>, 4>& parts, std::array<std::vector<A>, 4>& rstd,
                         std::array<std::vector<A>, 4>& lines, const Pointers& pointers) {
    HeadRegions<T> all;
    for (size_t which = 0; which < 4; ++which)
      all.regions[which] = region(which, parts[which].data(), rstd[which].data(), lines[which].data(), pointers);
    return all;
  }
  HeadRegion<T> region(size_t which, T* x, A* rstd, A* lines, const Pointers& pointers) const {
    const int64_t width = shape_.groups * heads_[which] * shape_.head_dim;
    HeadRegion<T> out{x, heads_[which], 2 * width, width, shape_.head_dim};
    if (!is_normed(which)) return out;
    if (shape_.rotary > 0) out.cos = pointers.cos, out.sin = pointers.sin;
    out.norm = {pointers.weight, 1e-5, one_plus_, rstd, lines};
    return out;
  }
  void expect_split(const std::vector<T>& got, const std::vector<T>& wanted, size_t which) const {
    // Normalized values times weights, then a cos - c sin.
    expect_close(got, wanted, which == 0 ? "queries" : "keys",
                 std::vector<double>(wanted.size(), normal_size() * 4 * 3 * 2));
  }

  // Returns queries, keys, gates, values, the joined heads, and the sums of both lines.
  auto run_on_host(size_t shift, size_t weight_shift) {
    const DeviceArray<T> raw(fused_, Use::in, "raw", shift), joined(fused_, Use::out, "joined", shift),
        weight(weight_, Use::in, "weight", weight_shift);
    const DeviceArray<A> gcos(cos_, Use::in, "cos", shift), gsin(sin_, Use::in, "sin");
    std::deque<DeviceArray<T>> to, from;
    std::deque<DeviceArray<A>> rstd, lines;
    for (size_t which = 0; which < 4; ++which) {
      const int64_t of_lines = is_normed(which) ? head_lines(count(which)) * shape_.head_dim : 0;
      to.emplace_back(parts_[which], Use::both, "split", shift);
      from.emplace_back(parts_[which], Use::in, "gradient", shift);
      rstd.emplace_back(rstd_[which], Use::both, "rstd");
      lines.emplace_back(std::vector<A>(static_cast<size_t>(of_lines)), Use::both, "lines");
    }
    const auto on_host = [&](const std::deque<DeviceArray<T>>& parts) {
      HeadRegions<T> all;
      for (size_t which = 0; which < 4; ++which)
        all.regions[which] = region(which, parts[which].data(), rstd[which].data(), lines[which].data(),
                                    {gcos.data(), gsin.data(), weight.data()});
      return all;
    };
    split_heads_cuda<T>(raw.data(), on_host(to), shape_, nullptr);
    HeadRegions<T> gradients = on_host(from);
    gradients.raw = raw.data();
    join_heads_cuda<T>(joined.data(), gradients, shape_, nullptr);
    const auto sums = [&](size_t which) {
      const std::vector<A> all = lines[which].values();
      std::vector<A> sum(weight_.size());
      for (size_t i = 0; i < all.size(); ++i) sum[i % sum.size()] += all[i];
      return sum;
    };
    return std::tuple{to[0].values(),  to[2].values(), to[1].values(), to[3].values(),
                      joined.values(), sums(0),        sums(2)};
  }

  HeadsShape shape_;
  std::array<int64_t, 4> heads_;
  bool one_plus_;
  std::vector<A> cos_, sin_;
  std::vector<T> weight_, fused_;
  std::array<std::vector<T>, 4> parts_;
  std::array<std::vector<A>, 4> rstd_;
};

template <class T>
void check_all() {
  for (const size_t shift : {0, 1}) {
    NormedHeads<T>({.groups = 2, .head_dim = 64, .rotary = 64}, {3, 3, 1, 1}, false).check(shift, 0);
    NormedHeads<T>({.groups = 23, .head_dim = 96, .rotary = 32}, {2, 0, 1, 1}, true).check(shift, 0);  // 3 lines
    NormedHeads<T>({.groups = 1, .head_dim = 128, .rotary = 128}, {4, 0, 1, 1}, false).check(0, shift);
    NormedHeads<T>({.groups = 3, .head_dim = 7, .rotary = 4, .interleaved = true}, {1, 0, 1, 1}, true)
        .check(shift, shift);
    NormedHeads<T>({.groups = 1, .head_dim = kMostNormedHead}, {1, 0, 1, 1}, false).check(shift, 0);
  }
}

TEST(NormedHeadsOnHost, EqualTheirCpuTwins) {
  check_all<float>();
  check_all<double>();
  check_all<Bf16>();
  check_all<F16>();
}

}  // namespace
}  // namespace metroplex::kernels_on_host::normed_heads_test
