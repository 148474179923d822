// Selection of the expert matmuls that libtorch computes on a GPU, for every type, size and architecture. The calls
// are checked on the CPU, which has the same function.
#include "moe/grouped_library.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "moe/grouped_product.h"

namespace metroplex::test::grouped_library_test {
namespace {

using kernels::GroupedOp;

// Whether weights must be joined first, and rows per group.
constexpr std::pair<bool, int64_t> kJoins[] = {{false, 0}, {true, 511}, {true, 512}};

TEST(GroupedLibrary, MultipliesBf16OnSm90AndSm100InRowsOf16Bytes) {
  int taken = 0;
  for (const bool gpu : {false, true}) {
    for (const int capability : {0, 80, 86, 89, 90, 100, 103, 110, 120}) {
      for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble}) {
        for (const int64_t in : {8, 12, 1024}) {
          for (const int64_t out : {8, 100, 14336}) {
            for (const auto& [joins, rows] : kJoins) {
              const bool aligned = in != 12 && out != 100, here = capability >= 90 && capability < 110;
              const bool wanted = gpu && here && type == at::kBFloat16 && aligned && (!joins || rows >= 512);
              EXPECT_EQ(moe::library_multiplies({gpu, capability, type, in, out, joins, rows}), wanted)
                  << capability << " " << type << " " << in << " " << out << " " << joins << " " << rows;
              const std::string name = moe::product_name({gpu, capability, type, in, out, joins, rows});
              EXPECT_EQ(name == "libtorch's _grouped_mm", wanted) << name;
              EXPECT_EQ(name.starts_with("own "), !wanted) << name;
              taken += wanted ? 1 : 0;
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(taken, 2 * 3 * 2 * 2);
}

// Products of bf16 are exact in fp32; the sum of up to 64 of them, of numbers below 4, is rounded to 8 bits at the
// end.
void expect_rounded(const at::Tensor& got, const at::Tensor& want, const char* what) {
  const at::Tensor room = want.abs() * 0x1p-8 + 64 * 16 * 0x1p-20;
  EXPECT_TRUE(((got.to(at::kDouble) - want).abs() <= room).all().item<bool>()) << what;
}

TEST(GroupedLibrary, GivesTheProductsOfEachGroupAndAddsWeightGradients) {
  at::manual_seed(5);
  for (const std::vector<int64_t>& counts : {std::vector<int64_t>{5, 0, 17, 2}, {0, 0, 0, 24}, {30, 9, 0, 0}}) {
    const int64_t room = 28, in = 16, out = 24;  // the last counts exceed the capacity
    const auto groups = static_cast<int64_t>(counts.size());
    const auto bf16 = at::TensorOptions().dtype(at::kBFloat16);
    const at::Tensor x = at::randn({room, in}, bf16), dy = at::randn({room, out}, bf16),
                     weights = at::randn({groups, out, in}, bf16), before = at::randn({groups, out, in});
    const at::Tensor on_device = at::tensor(counts, at::kLong);
    const device::Target cpu;
    const at::Tensor y = moe::library_rows(cpu, GroupedOp::forward, x, weights, on_device),
                     dx = moe::library_rows(cpu, GroupedOp::input_gradient, dy, weights, on_device);
    for (const bool zeros_empty : {false, true}) {
      const at::Tensor gradient = before.clone();
      moe::put_library_weight_gradient(cpu, {gradient, true, zeros_empty}, dy, x, on_device);
      const at::Tensor written = at::full_like(gradient, NAN), none = at::full_like(gradient, NAN);
      moe::put_library_weight_gradient(cpu, {written, false, zeros_empty}, dy, x, on_device);
      moe::put_library_weight_gradient(cpu, {none, false, zeros_empty}, dy.narrow(0, 0, 0), x.narrow(0, 0, 0),
                                       on_device);
      EXPECT_TRUE(at::equal(gradient, before + written)) << "what is written is what is added";
      EXPECT_EQ(none.abs().max().item<float>(), 0) << "no row anywhere";
      int64_t first = 0;
      for (int64_t e = 0; e < groups; ++e) {
        const int64_t n = std::min(counts[static_cast<size_t>(e)], room - first);
        const auto part = [&](const at::Tensor& of) { return of.narrow(0, first, n).to(at::kDouble); };
        const at::Tensor w = weights[e].to(at::kDouble);
        expect_rounded(y.narrow(0, first, n), part(x).mm(w.t()), "forward");
        expect_rounded(dx.narrow(0, first, n), part(dy).mm(w), "input gradient");
        const at::Tensor product = part(dy).t().mm(part(x)), sum = gradient[e].to(at::kDouble) - before[e];
        expect_rounded(sum, product, "weight gradient");
        EXPECT_TRUE(n > 0 || at::equal(gradient[e], before[e])) << "a group without rows";
        first += n;
      }
    }
  }
}

// The groups of one stack, the last of which are replicas: all results have the bits of the stack. Gradients of
// replicas are always written, for any update of the local experts' gradients.
TEST(GroupedLibrary, TakesClonesBesideHomeExperts) {
  at::manual_seed(6);
  const device::Target cpu;
  const int64_t groups = 5, room = 32, in = 16, out = 24;
  const auto bf16 = at::TensorOptions().dtype(at::kBFloat16);
  const at::Tensor x = at::randn({room, in}, bf16), dy = at::randn({room, out}, bf16),
                   weights = at::randn({groups, out, in}, bf16), before = at::randn({groups, out, in});
  const at::Tensor counts = at::tensor(std::vector<int64_t>{9, 0, 12, 4, 0}, at::kLong);
  for (const int64_t home : {1, 3, 4}) {
    const auto cut = [&](const at::Tensor& stack) {
      return moe::GroupedWeights(stack.narrow(0, 0, home).clone(), stack.narrow(0, home, groups - home).clone());
    };
    for (const GroupedOp op : {GroupedOp::forward, GroupedOp::input_gradient}) {
      const at::Tensor& rows = op == GroupedOp::forward ? x : dy;
      const auto of = [&](const moe::GroupedWeights& given) {
        return moe::library_rows(cpu, op, rows, given, counts).narrow(0, 0, 25);
      };
      EXPECT_TRUE(at::equal(of(cut(weights)), of(weights))) << home;
    }
    for (const bool adds : {false, true}) {
      const at::Tensor whole = before.clone();
      moe::put_library_weight_gradient(cpu, {whole, adds, true}, dy, x, counts);
      const at::Tensor written = before.clone();
      moe::put_library_weight_gradient(cpu, {written, false, true}, dy, x, counts);
      const moe::GroupedWeights parts = cut(before);
      moe::put_library_weight_gradient(cpu, {parts, adds, true}, dy, x, counts);
      EXPECT_TRUE(at::equal(parts.home, whole.narrow(0, 0, home))) << home << " " << adds;
      EXPECT_TRUE(at::equal(parts.replicas, written.narrow(0, home, groups - home))) << home << " " << adds;
      moe::put_library_weight_gradient(cpu, {parts, adds, true}, dy.narrow(0, 0, 0), x.narrow(0, 0, 0), counts);
      EXPECT_EQ(parts.replicas.abs().max().item<float>(), 0) << "no row anywhere";
      EXPECT_TRUE(adds ? at::equal(parts.home, whole.narrow(0, 0, home)) : parts.home.abs().max().item<float>() == 0);
    }
  }
}

struct Names final : device::Recorder {
  std::vector<std::string> names;
  void run(device::Operation operation) override {
    names.push_back(operation.name);
    operation.run();
  }
  void issued(const device::Operation& product) override { names.push_back(product.name); }
};

device::Target meta_gpu(Names& seen) {
  device::Target target;
  target.device = at::Device(at::kCUDA, 0);
  target.recorder = &seen;
  target.meta = true;
  return target;
}

TEST(GroupedLibrary, IsWhatAGpuIsAskedForByArchitecture) {
  using Names3 = std::vector<std::string>;
  for (const int capability : {80, 90, 100, 120}) {
    Names seen;
    const moe::GroupedProduct product(meta_gpu(seen), 4, capability);
    const auto meta = at::TensorOptions().dtype(at::kBFloat16).device(at::kMeta);
    const at::Tensor x = at::empty({32, 16}, meta), dy = at::empty({32, 24}, meta),
                     weights = at::empty({4, 24, 16}, meta), wide = at::empty({4, 24, 16}, meta.dtype(at::kFloat));
    const moe::GroupCounts counts = product.with_ends(at::empty({4}, meta.dtype(at::kLong)), 32, at::kBFloat16);
    EXPECT_EQ(product.rows(GroupedOp::forward, x, weights, counts).sizes(), at::IntArrayRef({32, 24}));
    EXPECT_EQ(product.rows(GroupedOp::input_gradient, dy, weights, counts).sizes(), at::IntArrayRef({32, 16}));
    product.run(GroupedOp::weight_gradient, dy, x, weights, counts, false);
    for (const bool adds : {false, true}) product.run(GroupedOp::weight_gradient, dy, x, wide, counts, adds);
    const bool library = capability == 90 || capability == 100;
    const Names3 own{"grouped_arguments", "grouped_product"};
    Names3 wanted;
    if (library) wanted.emplace_back("group_ends");  // once for all products
    for (int i = 0; i < 5; ++i) {
      if (library && i < 3) wanted.emplace_back("grouped_mm");
      else wanted.insert(wanted.end(), own.begin(), own.end());
    }
    EXPECT_EQ(seen.names, wanted) << capability;
  }
}

// The library has no factors of groups.
TEST(GroupedLibrary, MultipliesOnlyWithoutFactors) {
  const auto meta = at::TensorOptions().dtype(at::kBFloat16).device(at::kMeta);
  const at::Tensor x = at::empty({32, 16}, meta), dy = at::empty({32, 24}, meta),
                   weights = at::empty({4, 24, 16}, meta), counts = at::empty({4}, meta.dtype(at::kLong)),
                   factors = at::empty({4}, meta.dtype(at::kFloat));
  for (const bool left : {false, true}) {
    Names seen;
    const moe::GroupedProduct product(meta_gpu(seen), 4, 90);
    const auto scaled = [&](const at::Tensor& of, bool has) {
      return moe::GroupedWeights(of, {}, has ? factors : at::Tensor());
    };
    product.rows(GroupedOp::forward, scaled(x, left), scaled(weights, !left), counts);
    product.run(GroupedOp::weight_gradient, scaled(dy, left), scaled(x, !left), weights, counts);
    const std::vector<std::string> own{"grouped_arguments", "grouped_product", "grouped_arguments",
                                       "grouped_product"};
    EXPECT_EQ(seen.names, own);
  }
}

// With one replica and three local experts: weights are joined only for many rows; gradients are always contiguous.
TEST(GroupedLibrary, IsWhatAGpuIsAskedForWithClones) {
  for (const int64_t rows : {4 * 512 - 1, 4 * 512}) {
    Names seen;
    const moe::GroupedProduct product(meta_gpu(seen), 4, 90);
    const auto meta = at::TensorOptions().dtype(at::kBFloat16).device(at::kMeta);
    const auto stack = [&](const at::TensorOptions& options) {
      return moe::GroupedWeights(at::empty({3, 24, 16}, options), at::empty({1, 24, 16}, options));
    };
    const at::Tensor x = at::empty({rows, 16}, meta), dy = at::empty({rows, 24}, meta),
                     counts = at::empty({4}, meta.dtype(at::kLong));
    EXPECT_EQ(product.rows(GroupedOp::forward, x, stack(meta), counts).sizes(), at::IntArrayRef({rows, 24}));
    EXPECT_EQ(product.rows(GroupedOp::input_gradient, dy, stack(meta), counts).sizes(), at::IntArrayRef({rows, 16}));
    product.run(GroupedOp::weight_gradient, dy, x, stack(meta), counts);
    product.run(GroupedOp::weight_gradient, dy, x, stack(meta.dtype(at::kFloat)), counts);
    std::vector<std::string> wanted{"grouped_arguments", "grouped_product", "grouped_arguments", "grouped_product"};
    if (rows == 4 * 512) wanted = {"group_ends", "grouped_mm", "group_ends", "grouped_mm"};
    for (const char* name : {"group_ends", "grouped_mm", "grouped_arguments", "grouped_product"})
      wanted.emplace_back(name);
    EXPECT_EQ(seen.names, wanted) << rows;
  }
}

}  // namespace
}  // namespace metroplex::test::grouped_library_test
