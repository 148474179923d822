// Codes of a matrix for both products: those of encode_values, on the CPU and by the CUDA kernel.
#include <algorithm>
#include <vector>

#include "kernels/encode_matrix.h"
#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host::encode_matrix_test {
namespace {

enum class Side { codes, transposed, both };

template <class Element>
std::vector<Element> transpose(const std::vector<Element>& from, int64_t rows, int64_t columns) {
  std::vector<Element> to(from.size());
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column)
      to[static_cast<size_t>(column * rows + row)] = from[static_cast<size_t>(row * columns + column)];
  return to;
}

template <class T>
struct Codes {
  std::vector<uint8_t> codes;
  std::vector<Wide<T>> decode;
  bool operator==(const Codes&) const = default;
};

// The codes of encode_values with these blocks.
template <class T>
Codes<T> encode(const std::vector<T>& x, Wide<T> magnitude, const RoundShape& blocks) {
  const int64_t down = blocks.whole_groups() ? 1 : (blocks.rows + blocks.block_rows - 1) / blocks.block_rows,
                across = blocks.whole_groups() ? 1 : blocks.column_blocks();
  Codes<T> out{std::vector<uint8_t>(x.size()), std::vector<Wide<T>>(static_cast<size_t>(down * across))};
  encode_values<T>({out.codes.data(), out.decode.data()}, x.data(), &magnitude, nullptr, blocks);
  return out;
}

template <class T>
Codes<T> encode_transposed(const std::vector<T>& x, Wide<T> magnitude, const MatrixShape& shape) {
  const RoundShape blocks = shape.over_rows();
  const Codes<T> straight = encode(x, magnitude, blocks);
  const int64_t across = blocks.whole_groups() ? 1 : blocks.column_blocks(),
                down = across == 0 ? 0 : static_cast<int64_t>(straight.decode.size()) / across;
  return {transpose(straight.codes, shape.rows, shape.columns), transpose(straight.decode, down, across)};
}

template <class T>
void check(const MatrixShape& shape, Side side, bool measures, size_t shift = 0) {
  using W = Wide<T>;
  SCOPED_TRACE(testing::Message() << kName<T> << " " << shape.rows << " x " << shape.columns << ", blocks of "
                                  << shape.block << ", side " << static_cast<int>(side));
  std::vector<T> x = make_values<T>(shape.rows * shape.columns, 0.7);
  // Blocks with different factors.
  for (size_t i = 0; i < x.size(); ++i)
    if (static_cast<int64_t>(i) / shape.columns >= 128) x[i] = store<T>(load(x[i]) * W(16));
  const W magnitude = W(0.25);
  const Codes<T> straight = encode(x, magnitude, shape.over_columns()),
                 turned = encode_transposed(x, magnitude, shape);
  W most = W(0.125);
  largest_magnitudes(&most, x.data(), nullptr, {shape.rows, shape.columns});
  most = std::max(most, W(0.125));
  const bool first = side != Side::transposed, second = side != Side::codes;

  const auto expect = [&](const Codes<T>& codes, const Codes<T>& transposed, W largest) {
    EXPECT_TRUE(!first || codes == straight);
    EXPECT_TRUE(!second || transposed == turned);
    EXPECT_EQ(largest, measures ? most : W(0.125));
  };
  const auto none = [](const Codes<T>& like) {
    return Codes<T>{std::vector<uint8_t>(like.codes.size(), 1), std::vector<W>(like.decode.size(), W(-1))};
  };
  Codes<T> codes = none(straight), transposed = none(turned);
  W largest = W(0.125);
  EncodedMatrix<W> out;
  if (first) out.codes = codes.codes.data(), out.decode = codes.decode.data();
  if (second) out.transposed = transposed.codes.data(), out.transposed_decode = transposed.decode.data();
  if (measures) out.largest = &largest;
  encode_matrix<T>(out, x.data(), &magnitude, shape);
  expect(codes, transposed, largest);

  const auto got = run_all_orders([&] {
    const DeviceArray<T> there(x, Use::in, "x", shift);
    const DeviceArray<W> of_matrix({magnitude}, Use::in, "magnitude", 0),
        most_there({W(0.125)}, Use::both, "largest", 0), decode(none(straight).decode, Use::both, "decode", 0),
        transposed_decode(none(turned).decode, Use::both, "transposed_decode", 0),
        parts(std::vector<W>(static_cast<size_t>(kEncodeBlocks)), Use::both, "parts", 0);
    const DeviceArray<uint8_t> own(none(straight).codes, Use::both, "codes", shift),
        other(none(turned).codes, Use::both, "transposed", shift);
    EncodedMatrix<W> on_device;
    if (first) on_device.codes = own.data(), on_device.decode = decode.data();
    if (second) on_device.transposed = other.data(), on_device.transposed_decode = transposed_decode.data();
    if (measures) on_device.largest = most_there.data();
    encode_matrix_cuda<T>(on_device, parts.data(), there.data(), of_matrix.data(), shape, nullptr);
    return std::tuple{own.values(), decode.values(), other.values(), transposed_decode.values(), most_there.values()};
  });
  const auto& [own, decode, other, transposed_decode, most_there] = got;
  expect({own, decode}, {other, transposed_decode}, most_there.front());
}

template <class T>
void check_all() {
  const std::pair<int64_t, int64_t> sizes[] = {{13, 7}, {144, 136}, {130, 257}, {0, 32}};
  for (const auto& [rows, columns] : sizes) {
    for (const Side side : {Side::codes, Side::transposed, Side::both}) {
      check<T>({rows, columns, 0, false, SmallNumber::e5m2, BlockFactor::fp32}, side, true);
      check<T>({rows, columns, 32, false, SmallNumber::e4m3, BlockFactor::power_of_two}, side, false);
    }
    check<T>({rows, columns, 0, false, SmallNumber::e4m3, BlockFactor::fp32}, Side::both, true, 1);  // unaligned
    check<T>({rows, columns, 16, false, SmallNumber::e4m3, BlockFactor::power_of_two}, Side::both, false);
    check<T>({rows, columns, 128, false, SmallNumber::e4m3, BlockFactor::power_of_two}, Side::both, false);
    check<T>({rows, columns, 128, true, SmallNumber::e4m3, BlockFactor::power_of_two}, Side::both, true);
  }
}

TEST(EncodeMatrix, EqualsTheCodesOfBothProducts) {
  check_all<float>();
  check_all<double>();
  check_all<Bf16>();
  check_all<F16>();
}

// One code in each byte -> two.
std::vector<uint8_t> join(const std::vector<uint8_t>& codes) {
  std::vector<uint8_t> pairs(codes.size() / 2);
  for (size_t i = 0; i < pairs.size(); ++i) pairs[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
  return pairs;
}

void check_transposition(int64_t rows, int64_t columns, bool pairs, size_t shift = 0) {
  SCOPED_TRACE(testing::Message() << rows << " x " << columns << (pairs ? " pairs" : ""));
  std::vector<uint8_t> codes(static_cast<size_t>(rows * columns));
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 7 % (pairs ? 16 : 251));
  const std::vector<uint8_t> turned = transpose(codes, rows, columns), from = pairs ? join(codes) : codes,
                             want = pairs ? join(turned) : turned, none(want.size(), 1);
  std::vector<uint8_t> on_cpu = none;
  transpose_codes(on_cpu.data(), from.data(), rows, columns, pairs);
  EXPECT_EQ(on_cpu, want);
  const auto got = run_all_orders([&] {
    const DeviceArray<uint8_t> there(from, Use::in, "from", shift), to(none, Use::out, "to", shift);
    transpose_codes_cuda(to.data(), there.data(), rows, columns, pairs, nullptr);
    return std::tuple{to.values()};
  });
  EXPECT_EQ(std::get<0>(got), want);
}

TEST(EncodeMatrix, TransposesCodes) {
  for (const bool pairs : {false, true}) {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{2, 6}, {130, 264}, {256, 128}, {0, 4}})
      check_transposition(rows, columns, pairs);
  }
  check_transposition(131, 7, false);
  check_transposition(256, 128, false, 1);  // unaligned
}

}  // namespace
}  // namespace metroplex::kernels_on_host::encode_matrix_test
