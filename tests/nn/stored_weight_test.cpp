// Weights stored as codes: E4M3 against torch's casts. Codes of NVFP4: run/stored_weights_ranks_test.cpp.
#include "nn/stored_weight.h"

#include <cmath>

#include "nn/linear.h"
#include "nn/tools.h"
#include "support/error_of.h"

namespace metroplex::test::stored_weight_test {
namespace {

using config::BaseFormat;

nn::LayerContext stored_context(BaseFormat format, at::ScalarType dtype) {
  nn::LayerContext context = layer_context({}, false, dtype);
  context.peft.lora_rank = 1;
  context.peft.base_format = format;
  return context;
}

nn::Param stored_param(const at::Tensor& values, BaseFormat format) {
  const nn::LayerContext context = stored_context(format, values.scalar_type());
  nn::Param param = nn::make_param({"w", values.sizes().vec(), {}, nn::Init::zeros}, context);
  nn::store_as_codes(param, context, {});
  nn::set_weight_values(param, values);
  EXPECT_FALSE(param.data.defined());
  return param;
}

// Magnitudes from 2^-30 to 2^9, with rows and blocks of zeros.
at::Tensor spread_values(std::vector<int64_t> sizes, at::ScalarType dtype) {
  const at::Tensor exponents = sample(sizes, 7).mul_(39).sub_(30);
  const at::Tensor values = at::mul(sample(sizes, 3).sub_(0.5), at::exp2(exponents));
  values.select(-2, 5).zero_();
  values.narrow(-1, 16, 16).mul_(0x1p-25);
  return values.to(dtype);
}

// The smallest power of two for which magnitude / scale is at most `most`.
double scale_by_hand(double magnitude, double most) { return std::exp2(std::ceil(std::log2(magnitude / most))); }

TEST(StoredWeight, EqualsCastsOfTorch) {
  const at::Tensor weight = spread_values({2, 200, 160}, at::kFloat);
  // The largest of each block, on both sides of the limits of E4M3: 448 and 464.
  weight[0][0][0] = 449 * 8, weight[0][130][1] = 464 * 16, weight[0][1][130] = -465 * 8,
  weight[0][131][131] = 511 * 8;
  weight[1][2][2] = 500 * 32, weight[1][132][3] = -447 * 64, weight[1][3][132] = 233 * 8,
  weight[1][133][133] = 231 * 8;
  const at::Tensor want = weight.clone();
  for (int64_t matrix = 0; matrix < 2; ++matrix) {
    for (const int64_t row : {0, 128}) {
      for (const int64_t column : {0, 128}) {
        const at::Tensor block =
            want.select(0, matrix).narrow(0, row, row == 0 ? 128 : 72).narrow(1, column, column == 0 ? 128 : 32);
        const double scale = scale_by_hand(block.abs().max().item<double>(), 464);
        block.copy_(block.div(scale).to(at::kFloat8_e4m3fn).to(at::kFloat).mul(scale));
      }
    }
  }
  EXPECT_TRUE(at::equal(nn::weight_values(stored_param(weight, BaseFormat::fp8)), want));
}

TEST(StoredWeight, DecodedValuesEncodeToThemselves) {
  for (const BaseFormat format : {BaseFormat::fp8, BaseFormat::nvfp4}) {
    for (const double factor : {1.0, 231.9 / 512, 232.0 / 512, 232.1 / 512, 0x1p-120, 0x1p40}) {
      SCOPED_TRACE(testing::Message() << config::text_of(format) << " " << factor);
      const at::Tensor weight = spread_values({3, 140, 144}, at::kDouble).mul_(factor);
      const at::Tensor once = nn::weight_values(stored_param(weight, format));
      EXPECT_TRUE(at::equal(nn::weight_values(stored_param(once, format)), once));
      const at::Tensor narrow = once.to(at::kBFloat16);
      EXPECT_TRUE(at::equal(narrow.to(at::kDouble), once));  // exact in bf16
      EXPECT_TRUE(at::equal(nn::weight_values(stored_param(narrow, format)), narrow));
    }
  }
}

// fp8 rounds a value by at most 1/16 of it. nvfp4 rounds by at most 1 of the 6 steps to the largest value of a block,
// and its scale by at most 1/16.
TEST(StoredWeight, IsNearTheWeight) {
  const at::Tensor weight = sample({128, 128}, 5).sub_(0.5);
  const double largest = weight.abs().max().item<double>();
  const at::Tensor fp8 = nn::weight_values(stored_param(weight, BaseFormat::fp8)),
                   nvfp4 = nn::weight_values(stored_param(weight, BaseFormat::nvfp4));
  EXPECT_LE((fp8 - weight).abs().max().item<double>(), largest * 0x1p-4);
  EXPECT_LE((nvfp4 - weight).abs().max().item<double>(), largest * (1.0 / 6 + 1.0 / 16));
}

TEST(StoredWeight, NotFiniteValuesStayVisible) {
  for (const BaseFormat format : {BaseFormat::fp8, BaseFormat::nvfp4}) {
    for (const double value : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
      at::Tensor weight = at::ones({32, 32}, at::kFloat);
      weight[3][20] = value;
      const at::Tensor got = nn::weight_values(stored_param(weight, format));
      EXPECT_FALSE(std::isfinite(got[3][20].item<double>())) << config::text_of(format) << " " << value;
    }
  }
}

TEST(StoredWeight, TakesTheBytesOfItsCodes) {
  const at::Tensor weight = sample({4, 256, 384}, 5, at::kBFloat16);
  const auto bytes = [&](BaseFormat format) {
    return static_cast<double>(stored_param(weight, format).stored->bytes()) / static_cast<double>(weight.nbytes());
  };
  EXPECT_EQ(bytes(BaseFormat::fp8), 0.5 + 4.0 / (128 * 128 * 2));
  EXPECT_EQ(bytes(BaseFormat::nvfp4), (0.5 + 1.0 / 16) / 2 + 4.0 / (256 * 384 * 2));
}

TEST(StoredWeight, BlocksAreInOneShard) {
  const auto refusal = [](BaseFormat format, int64_t rows, int64_t columns, int dim, int64_t shard) {
    const nn::LayerContext context = stored_context(format, at::kFloat);
    nn::ParamSpec spec{"layer.weight", {rows, columns}, {}, nn::Init::zeros};
    spec.placement.cuts = {{.dim = dim, .axes = topology::Axis::tp, .ranges = {{0, 0, shard}}}};
    return catch_error([&] {
      nn::Param param = nn::make_param(spec, context);
      nn::store_as_codes(param, context, {});
    });
  };
  EXPECT_EQ(refusal(BaseFormat::fp8, 256, 100, 0, 128), "");
  EXPECT_EQ(refusal(BaseFormat::nvfp4, 20, 64, 0, 10), "");
  EXPECT_EQ(refusal(BaseFormat::nvfp4, 20, 64, 1, 32), "");
  const std::string message = refusal(BaseFormat::fp8, 192, 128, 0, 96);
  for (const char* const word : {"layer.weight", "96", "128", "peft.base_format = fp8"})
    EXPECT_NE(message.find(word), std::string::npos) << message;
  EXPECT_NE(refusal(BaseFormat::fp8, 128, 128, 1, 64).find("64 features"), std::string::npos);
  EXPECT_NE(refusal(BaseFormat::nvfp4, 20, 48, 1, 24).find("24 features"), std::string::npos);
}

}  // namespace
}  // namespace metroplex::test::stored_weight_test
