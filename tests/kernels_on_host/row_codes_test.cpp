#include "kernels/row_codes.h"

#include <vector>

#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host::row_codes_test {
namespace {

template <class T>
void check(const RowCodesShape& shape) {
  std::vector<T> x = make_values<T>(shape.rows * shape.columns, 0.7);
  for (size_t i = 0; i < x.size(); ++i) {  // blocks with different scales
    const auto factor = static_cast<Wide<T>>(int64_t{1} << (i / static_cast<size_t>(kRowBlock) % 5));
    x[i] = store<T>(load(x[i]) * factor);
  }
  const std::vector<uint8_t> none(static_cast<size_t>(shape.rows * shape.row_bytes()));
  std::vector<uint8_t> codes = none;
  std::vector<T> values(x.size());
  encode_rows(codes.data(), x.data(), shape);
  decode_rows(values.data(), codes.data(), shape);
  const auto got = run_all_orders([&] {
    const DeviceArray<T> given(x, Use::in, "x"), out(std::vector<T>(x.size()), Use::out, "values");
    const DeviceArray<uint8_t> there(none, Use::out, "codes");
    encode_rows_cuda<T>(there.data(), given.data(), shape, nullptr);
    decode_rows_cuda<T>(out.data(), there.data(), shape, nullptr);
    return std::tuple{there.values(), out.values()};
  });
  EXPECT_TRUE(same_bits(std::get<0>(got), codes));
  EXPECT_TRUE(same_bits(std::get<1>(got), values));
}

TEST(RowCodes, EqualTheCpu) {
  for (const RowCodesShape& shape : {RowCodesShape{5, 96}, RowCodesShape{1, 32}, RowCodesShape{0, 64}}) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.columns);
    check<float>(shape);
    check<double>(shape);
    check<Bf16>(shape);
    check<F16>(shape);
  }
}

}  // namespace
}  // namespace metroplex::kernels_on_host::row_codes_test
