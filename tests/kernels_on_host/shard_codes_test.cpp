// The codes of shards are those of whole matrices (encode_values), on the CPU and by the CUDA kernels.
#include <algorithm>
#include <vector>

#include "kernels/shard_codes.h"
#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host::shard_codes_test {
namespace {

template <class T>
struct Whole {
  std::vector<T> x;
  std::vector<uint8_t> codes;
  std::vector<Wide<T>> decode;
};

// The matrices have whole blocks of rows, so that encode_values treats them as one matrix.
template <class T>
Whole<T> encode_whole(const ShardShape& shape) {
  const int64_t rows = shape.matrices * shape.rows;
  Whole<T> whole{make_values<T>(rows * shape.columns, 0.7),
                 std::vector<uint8_t>(static_cast<size_t>(rows * shape.columns)),
                 std::vector<Wide<T>>(static_cast<size_t>(shape.blocks()))};
  const RoundShape blocks{rows, shape.columns, 1, shape.block_rows, shape.block_columns, shape.number, shape.factor};
  encode_values<T>({whole.codes.data(), whole.decode.data()}, whole.x.data(), nullptr, nullptr, blocks);
  return whole;
}

// `cuts`: where the shards end.
template <class T>
void check(ShardShape shape, const std::vector<int64_t>& cuts) {
  using W = Wide<T>;
  SCOPED_TRACE(testing::Message() << kName<T> << " " << shape.matrices << " of " << shape.rows << " x "
                                  << shape.columns);
  const Whole<T> whole = encode_whole<T>(shape);
  const auto shards = [&](const auto& body) {
    shape.begin = 0;
    for (const int64_t cut : cuts) {
      shape.size = cut - shape.begin;
      body(std::vector<T>(whole.x.begin() + shape.begin, whole.x.begin() + cut));
      shape.begin = cut;
    }
  };
  std::vector<W> largest(whole.decode.size());
  shards([&](const std::vector<T>& x) {
    std::vector<W> own(largest.size(), W(-1));
    shard_magnitudes(own.data(), x.data(), shape);
    const auto got = run_all_orders([&] {
      const DeviceArray<T> there(x, Use::in, "x", 0);
      const DeviceArray<W> magnitudes(own, Use::out, "magnitudes", 0);
      shard_magnitudes_cuda<T>(magnitudes.data(), there.data(), shape, nullptr);
      return std::tuple{magnitudes.values()};
    });
    EXPECT_EQ(std::get<0>(got), own);
    for (size_t i = 0; i < own.size(); ++i) largest[i] = std::max(largest[i], own[i]);
  });
  std::vector<uint8_t> codes;
  shards([&](const std::vector<T>& x) {
    std::vector<uint8_t> own(x.size(), 1);
    std::vector<W> decode(largest.size());
    encode_shard(own.data(), decode.data(), x.data(), largest.data(), shape);
    const auto got = run_all_orders([&] {
      const DeviceArray<T> there(x, Use::in, "x", 0);
      const DeviceArray<W> magnitudes(largest, Use::in, "magnitudes", 0), factors(decode, Use::out, "decode", 0);
      const DeviceArray<uint8_t> out(own, Use::out, "codes", 0);
      encode_shard_cuda<T>(out.data(), factors.data(), there.data(), magnitudes.data(), shape, nullptr);
      return std::tuple{out.values(), factors.values()};
    });
    EXPECT_EQ(std::get<0>(got), own);
    EXPECT_EQ(std::get<1>(got), decode);
    EXPECT_EQ(decode, whole.decode);
    codes.insert(codes.end(), own.begin(), own.end());
  });
  EXPECT_EQ(codes, whole.codes);
}

template <class T>
void check_shapes() {
  // Shards end inside a row, at the end of a row, inside a block, at the end of a matrix; one is empty.
  check<T>({.matrices = 1, .rows = 37, .columns = 40, .block_rows = 16, .block_columns = 16},
           {7, 7, 40, 333, 640, 1480});
  check<T>({.matrices = 3, .rows = 32, .columns = 19, .block_rows = 16, .block_columns = 16}, {5, 608, 1300, 1824});
  check<T>({.matrices = 1, .rows = 0, .columns = 8, .block_rows = 16, .block_columns = 16}, {0});
}

TEST(ShardCodesOnHost, AreThoseOfWholeMatrices) {
  check_shapes<float>();
  check_shapes<double>();
  check_shapes<Bf16>();
  check_shapes<F16>();
  check<Bf16>({.matrices = 1, .rows = 130, .columns = 300, .block_rows = 128, .block_columns = 128}, {20000, 39000});
}

}  // namespace
}  // namespace metroplex::kernels_on_host::shard_codes_test
