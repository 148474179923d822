// Indices beyond 2^31 elements: arrays of zeros that take memory where they are touched, of which the blocks that run
// reach the end.
#include "cuda/kernels/activation.h"
#include "cuda/kernels/cross_entropy.h"
#include "cuda/kernels/embedding.h"
#include "cuda/kernels/norm.h"
#include "cuda/kernels/rope.h"
#include "kernels_on_host/far_array.h"
#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host {
namespace {

constexpr int64_t kFar = (int64_t{1} << 31) + 1000;
const Bf16 kTwo = store<Bf16>(2.0F), kThree = store<Bf16>(3.0F);

// The first block and the one that takes element `last` of a grid over elements.
void only_the_last(int64_t last) {
  constexpr int64_t kThreads = 256, kMostBlocks = 8192;
  set_order({0, {0, static_cast<uint64_t>(last / kThreads % kMostBlocks)}});
}

TEST(FarOnHost, RopeTurnsHeadsThatLieFarApart) {
  const RopeShape s{3, 2, 2, 4, kFar, kFar / 2, kFar / 4};
  const FarArray<Bf16> x(3 * kFar, "x");
  Bf16* const last = x.data() + 2 * s.stride_s + s.stride_b + s.stride_head;
  last[0] = kTwo, last[2] = kThree;
  const DeviceArray<float> cos(std::vector<float>(6, 0.0F), Use::in, "cos"),
      sin(std::vector<float>(6, 1.0F), Use::in, "sin");
  rope_cuda<Bf16>(x.data(), cos.data(), sin.data(), 1, s, nullptr);
  EXPECT_EQ(load(last[0]), -3.0F);
  EXPECT_EQ(load(last[2]), 2.0F);
}

TEST(FarOnHost, ElementsOfLargeArraysAreReached) {
  const int64_t width = 1000, rows = kFar / width + 1, last = rows * width - 1;
  const FarArray<Bf16> x(rows * width, "x"), out(rows * width, "out");
  only_the_last(last);
  x.data()[last] = kThree;
  activation_forward_cuda<Bf16>(x.data(), nullptr, out.data(), {rows, width, Activation::squared_relu, false},
                                nullptr);
  EXPECT_EQ(load(out.data()[last]), 9.0F);
  activation_backward_cuda<Bf16>(x.data(), x.data(), nullptr, out.data(),
                                 {rows, width, Activation::squared_relu, false}, nullptr);
  EXPECT_EQ(load(out.data()[last]), 18.0F);
  set_order({});
}

TEST(FarOnHost, LogitsOfLargeVocabulariesAreReached) {
  const int64_t columns = int64_t{1} << 18, rows = kFar / columns + 1, last = rows * columns - 1;
  const FarArray<Bf16> x(rows * columns, "logits");
  const FarArray<int64_t> targets(rows, "targets");
  const FarArray<float> logsumexp(rows, "logsumexp"), scale(rows, "scale"), maximum(rows, "maximum"),
      exp_sum(rows, "exp_sum"), target(rows, "target");
  targets.data()[rows - 1] = columns - 1;
  scale.data()[rows - 1] = 1;
  x.data()[last] = kThree;
  set_order({0, {static_cast<uint64_t>((rows - 1) % 8192)}});
  cross_entropy_statistics_cuda<Bf16>(x.data(), targets.data(),
                                      {maximum.data(), exp_sum.data(), target.data(), nullptr},
                                      {rows, columns, columns}, nullptr);
  EXPECT_EQ(target.data()[rows - 1], 3.0F);
  EXPECT_EQ(maximum.data()[rows - 1], 3.0F);
  logsumexp.data()[rows - 1] = 3;
  constexpr int64_t kPiece = 4 * 256 * 8;  // elements that a block takes at once
  set_order({0, {static_cast<uint64_t>((rows * (columns / kPiece) - 1) % 8192)}});
  cross_entropy_backward_cuda<Bf16>(x.data(), targets.data(), {logsumexp.data(), scale.data(), 1, 0},
                                    {rows, columns, columns}, nullptr);
  EXPECT_EQ(load(x.data()[last]), 0.0F);  // e^0 - 1
  EXPECT_EQ(load(x.data()[last - 1]), load(store<Bf16>(std::exp(-3.0F))));
  set_order({});
}

TEST(FarOnHost, RowsOfLargeTablesAndNormsAreReached) {
  const int64_t width = int64_t{1} << 16, rows = kFar / width + 1;
  const FarArray<Bf16> table(rows * width, "table"), out(rows * width, "out");
  table.data()[rows * width - 1] = kTwo;
  const DeviceArray<int64_t> index({rows - 1}, Use::in, "indices"), order({0}, Use::in, "order");
  gather_rows_cuda<Bf16>(table.data(), index.data(), out.data(), false, {rows, width, 1}, nullptr);
  EXPECT_EQ(load(out.data()[width - 1]), 2.0F);
  scatter_add_rows_cuda<Bf16, Bf16>(table.data(), {index.data(), order.data()}, out.data(), {rows, width, 1},
                                    nullptr);
  EXPECT_EQ(load(table.data()[rows * width - 1]), 4.0F);
  const FarArray<float> weight(width, "weight"), rstd(rows, "rstd");
  weight.data()[width - 1] = 1;
  set_order({0, {static_cast<uint64_t>((rows - 1) % 8192)}});
  norm_forward_cuda<Bf16, Bf16>({table.data(), weight.data(), nullptr, out.data(), nullptr, rstd.data()},
                                {rows, width, 0, true}, nullptr);
  EXPECT_EQ(load(out.data()[rows * width - 1]), 256.0F);  // of a row with one number, sqrt(width) times its sign
  set_order({});
}

}  // namespace
}  // namespace metroplex::kernels_on_host
