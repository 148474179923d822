// Gradients of biases: sums over the rows of dy, of integers, which are exact in any order.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "nn/matmul.h"

namespace metroplex::test::bias_gradient_test {
namespace {

using Types = std::pair<at::ScalarType, at::ScalarType>;  // of dy and of the gradient
const std::vector<Types> kOwnTypes{
    {at::kBFloat16, at::kFloat}, {at::kHalf, at::kFloat}, {at::kFloat, at::kFloat}, {at::kDouble, at::kDouble}};
// A router in fp64 with fp32 parameters; gradients in a half type.
const std::vector<Types> kOtherTypes{{at::kDouble, at::kFloat}, {at::kBFloat16, at::kBFloat16}};

// Views [6, 5, 24] as layers produce them: contiguous, columns of a wider tensor, a repeated row, transposed.
struct Views {
  at::Tensor whole, columns, repeated, transposed;
  explicit Views(const at::TensorOptions& like)
      : whole(numbers({6, 5, 24}, like)),
        columns(numbers({6, 5, 32}, like).narrow(2, 3, 24)),
        repeated(numbers({24}, like).expand({6, 5, 24})),
        transposed(numbers({24, 6, 5}, like).permute({1, 2, 0})) {}
  static at::Tensor numbers(at::IntArrayRef sizes, const at::TensorOptions& like) {
    if (like.device().is_meta()) return at::empty(sizes, like);
    return at::randint(-8, 9, sizes, at::TensorOptions().dtype(at::kLong)).to(like.dtype());
  }
};

TEST(BiasGradient, IsTheSumOfAllRowsHoweverTheyLieAndOverwritesOrAdds) {
  std::vector<Types> all = kOwnTypes;
  all.insert(all.end(), kOtherTypes.begin(), kOtherTypes.end());
  for (const auto& [type, of_gradient] : all) {
    const Views dy(at::TensorOptions().dtype(type));
    for (const at::Tensor& x : {dy.whole, dy.columns, dy.repeated, dy.transposed, dy.whole.narrow(0, 0, 0)}) {
      const at::Tensor sum = x.to(at::kDouble).sum(at::IntArrayRef({0, 1}));
      at::Tensor added = at::full({24}, 3, at::TensorOptions().dtype(of_gradient)),
                 written = at::full_like(added, std::numeric_limits<double>::quiet_NaN());
      nn::put_linear_bias_gradient({}, added, x, true);
      nn::put_linear_bias_gradient({}, written, x, false);
      EXPECT_TRUE(at::equal(added.to(at::kDouble), sum + 3)) << type << " " << x.strides();
      EXPECT_TRUE(at::equal(written.to(at::kDouble), sum)) << type << " " << x.strides();
    }
  }
}

struct Calls final : device::Recorder {
  std::vector<device::Operation> all;
  void run(device::Operation operation) override {
    operation.run();
    all.push_back(std::move(operation));
  }
};

// On the meta device, as for a GPU: one call of our kernel, which reads dy in place unless the elements of a row are
// strided. It reads the gradient only if it adds to it.
TEST(BiasGradient, OnAGpuIsOneOperatorWithLinesToWorkIn) {
  for (const auto& [type, of_gradient] : kOwnTypes) {
    const Views dy(at::TensorOptions().dtype(type).device(at::kMeta));
    for (const at::Tensor& x : {dy.whole, dy.columns, dy.repeated, dy.transposed}) {
      for (const bool adds : {false, true}) {
        Calls calls;
        const device::Target target{at::Device(at::kCUDA, 0), &calls, true};
        at::Tensor gradient = at::empty({24}, x.options().dtype(of_gradient));
        nn::put_linear_bias_gradient(target, gradient, x, adds);
        ASSERT_EQ(calls.all.size(), 1u) << type;
        const device::Operation& call = calls.all[0];
        EXPECT_EQ(call.name, "column_sums");
        ASSERT_EQ(call.reads.size(), adds ? 2u : 1u);
        const bool copied = call.reads[0].storage().unsafeGetStorageImpl() != x.storage().unsafeGetStorageImpl();
        EXPECT_EQ(copied, x.is_same(dy.transposed)) << x.strides();
        ASSERT_EQ(call.writes.size(), 2u);
        EXPECT_EQ(call.scratch, 1u);
        EXPECT_EQ(call.writes[1].sizes(), at::IntArrayRef({4, 24}));  // of 30 rows: 8 per line
        EXPECT_EQ(call.writes[1].scalar_type(), of_gradient);
      }
    }
  }
  for (const auto& [type, of_gradient] : kOtherTypes) {
    Calls calls;
    at::Tensor gradient = at::empty({24}, at::TensorOptions().dtype(of_gradient).device(at::kMeta));
    nn::put_linear_bias_gradient({at::Device(at::kCUDA, 0), &calls, true}, gradient,
                                 at::empty({30, 24}, gradient.options().dtype(type)), true);
    EXPECT_TRUE(calls.all.empty()) << "libtorch's";
  }
}

}  // namespace
}  // namespace metroplex::test::bias_gradient_test
