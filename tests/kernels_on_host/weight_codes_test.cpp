#include <vector>

#include "kernels/round_blocks.h"
#include "kernels/weight_codes.h"
#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host::weight_codes_test {
namespace {

// `shift`: elements between the arrays and an aligned address.
template <class T>
void check_e4m3(const CodesShape& shape, const std::vector<T>& x, size_t shift) {
  const auto scale_count = static_cast<size_t>(shape.matrices * shape.row_blocks() * shape.column_blocks());
  std::vector<uint8_t> codes(x.size());
  std::vector<float> scales(scale_count);
  std::vector<T> values(x.size());
  encode_e4m3(codes.data(), scales.data(), x.data(), shape);
  decode_e4m3(values.data(), codes.data(), scales.data(), shape);
  const auto got = run_all_orders([&] {
    const DeviceArray<T> given(x, Use::in, "x", shift), out(std::vector<T>(x.size()), Use::out, "values", shift);
    const DeviceArray<uint8_t> there(std::vector<uint8_t>(x.size()), Use::out, "codes", shift);
    const DeviceArray<float> factors(std::vector<float>(scale_count), Use::out, "scales", shift);
    encode_e4m3_cuda<T>(there.data(), factors.data(), given.data(), shape, nullptr);
    decode_e4m3_cuda<T>(out.data(), there.data(), factors.data(), shape, nullptr);
    return std::tuple{there.values(), factors.values(), out.values()};
  });
  EXPECT_TRUE(same_bits(std::get<0>(got), codes));
  EXPECT_TRUE(same_bits(std::get<1>(got), scales));
  EXPECT_TRUE(same_bits(std::get<2>(got), values));
}

template <class T>
void check_e2m1(const CodesShape& shape, const std::vector<T>& x, size_t shift) {
  using W = Wide<T>;
  const std::vector<uint8_t> no_codes(x.size() / 2), no_scales(x.size() / 16);
  const std::vector<float> no_matrices(static_cast<size_t>(shape.matrices));
  std::vector<uint8_t> codes = no_codes, scales = no_scales;
  std::vector<float> matrices = no_matrices;
  std::vector<W> magnitudes(static_cast<size_t>(shape.matrices));
  std::vector<T> values(x.size());
  RoundShape whole;
  whole.rows = shape.matrices * shape.rows, whole.columns = shape.columns, whole.groups = shape.matrices;
  largest_magnitudes(magnitudes.data(), x.data(), nullptr, whole);
  const E2m1Codes on_cpu{codes.data(), scales.data(), matrices.data()};
  encode_e2m1(on_cpu, x.data(), magnitudes.data(), shape);
  decode_e2m1(values.data(), on_cpu, shape);
  const auto got = run_all_orders([&] {
    const DeviceArray<T> given(x, Use::in, "x", shift), out(std::vector<T>(x.size()), Use::out, "values", shift);
    const DeviceArray<W> largest(magnitudes, Use::in, "magnitudes", shift);
    const DeviceArray<uint8_t> there(no_codes, Use::out, "codes", shift),
        factors(no_scales, Use::out, "scales", shift);
    const DeviceArray<float> outer(no_matrices, Use::out, "matrix_scales", shift);
    const E2m1Codes on_device{there.data(), factors.data(), outer.data()};
    encode_e2m1_cuda<T>(on_device, given.data(), largest.data(), shape, nullptr);
    decode_e2m1_cuda<T>(out.data(), on_device, shape, nullptr);
    return std::tuple{there.values(), factors.values(), outer.values(), out.values()};
  });
  EXPECT_TRUE(same_bits(std::get<0>(got), codes));
  EXPECT_TRUE(same_bits(std::get<1>(got), scales));
  EXPECT_TRUE(same_bits(std::get<2>(got), matrices));
  EXPECT_TRUE(same_bits(std::get<3>(got), values));
}

// Values whose size changes by powers of two between rows, matrices and blocks of columns.
template <class T>
std::vector<T> make_uneven(const CodesShape& shape) {
  std::vector<T> x = make_values<T>(shape.values(), 0.7);
  for (size_t i = 0; i < x.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) / shape.columns, column = static_cast<int64_t>(i) % shape.columns;
    const double factor = (row % 3 == 0 ? 0x1p-3 : row % 3 == 1 ? 1 : 0) * (column < 128 ? 1 : 0x1p-2);
    x[i] = store<T>(load(x[i]) * static_cast<Wide<T>>(row < shape.rows ? factor : 4 * factor));
  }
  return x;
}

template <class T>
void check_all() {
  for (const size_t shift : {size_t{0}, size_t{1}}) {
    for (const CodesShape& shape : {CodesShape{2, 130, 136}, CodesShape{1, 3, 17}, CodesShape{3, 0, 8}}) {
      SCOPED_TRACE(testing::Message() << kName<T> << " " << shape.rows << " x " << shape.columns << " at " << shift);
      check_e4m3<T>(shape, make_uneven<T>(shape), shift);
    }
    for (const CodesShape& shape : {CodesShape{2, 9, 48}, CodesShape{1, 1, 16}, CodesShape{2, 0, 32}}) {
      SCOPED_TRACE(testing::Message() << kName<T> << " " << shape.rows << " x " << shape.columns << " at " << shift);
      check_e2m1<T>(shape, make_uneven<T>(shape), shift);
    }
  }
}

TEST(WeightCodes, EqualTheCpu) {
  check_all<float>();
  check_all<double>();
  check_all<Bf16>();
  check_all<F16>();
}

}  // namespace
}  // namespace metroplex::kernels_on_host::weight_codes_test
