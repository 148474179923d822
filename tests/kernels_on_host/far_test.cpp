// Indices beyond 2^31 elements: arrays of zeros in which only accessed pages take memory; the blocks that run reach
// the end.
#include "kernels/accumulate.h"
#include "kernels/activation.h"
#include "kernels/column_sums.h"
#include "kernels/cross_entropy.h"
#include "kernels/dropout_block.h"
#include "kernels/dropout_norm.h"
#include "kernels/embedding.h"
#include "kernels/expert_rows.h"
#include "kernels/grouped_product.h"
#include "kernels/optimizer_step.h"
#include "kernels/permutation.h"
#include "kernels/rope.h"
#include "kernels_on_host/far_array.h"
#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host::far_test {
namespace {

constexpr int64_t kFar = (int64_t{1} << 31) + 1000;
const Bf16 kTwo = store<Bf16>(2.0F), kThree = store<Bf16>(3.0F);

// Runs the first block and the one that handles element `last` of a grid over elements.
void only_last(int64_t last) {
  constexpr int64_t kThreads = 256, kMostBlocks = 8192;
  const auto block = static_cast<uint64_t>(last / kThreads % kMostBlocks);
  set_order({0, block == 0 ? std::vector<uint64_t>{0} : std::vector<uint64_t>{0, block}});
}

// A quarter turn of heads that are `apart` elements from each other in the sequence; checks the last pair of the last
// one.
void turn_heads(int64_t apart, int64_t rotary) {
  const RopeShape shape{3, 2, 2, rotary, apart, apart / 2, apart / 4};
  const FarArray<Bf16> x(3 * apart, "x");
  Bf16* const last = x.data() + 2 * shape.stride_s + shape.stride_b + shape.stride_head + rotary / 2 - 1;
  last[0] = kTwo, last[rotary / 2] = kThree;
  const auto angles = static_cast<size_t>(3 * rotary / 2);
  const DeviceArray<float> cos(std::vector<float>(angles, 0.0F), Use::in, "cos"),
      sin(std::vector<float>(angles, 1.0F), Use::in, "sin");
  rope_cuda<Bf16>(x.data(), cos.data(), sin.data(), 1, shape, nullptr);
  EXPECT_EQ(load(last[0]), -3.0F);
  EXPECT_EQ(load(last[rotary / 2]), 2.0F);
}

TEST(FarOnHost, RopeTurnsHeadsThatLieFarApart) { turn_heads(kFar, 4); }
TEST(FarOnHost, RopeTurnsPacksOfHeadsThatLieFarApart) { turn_heads(kFar / 32 * 32, 16); }  // a quarter: whole packs

TEST(FarOnHost, DropoutReachesLargeArrays) {
  for (const int64_t width : {1000, 999}) {
    const int64_t rows = kFar / width + 1, last = rows * width - 1, of_row = dropout_blocks_per_row(width);
    const FarArray<Bf16> x(rows * width, "x"), out(rows * width, "out");
    const DeviceArray<int64_t> counter({5}, Use::in, "counter");
    x.data()[last] = kThree;
    for (const int64_t item : {rows * of_row - 1, rows * of_row - 2}) {  // the last one of a row may have no element
      only_last(item);
      bias_dropout_add_cuda<Bf16, Bf16>({x.data(), nullptr, nullptr, out.data()},
                                        {{counter.data(), 1, 0}, rows, width, 7, 0.5}, nullptr);
    }
    const bool kept = base::philox4x32(7, static_cast<uint64_t>(last / 4), 5)[static_cast<size_t>(last % 4)] >> 31;
    EXPECT_EQ(load(out.data()[last]), kept ? 6.0F : 0.0F);
    set_order({});
  }
}

TEST(FarOnHost, ElementsOfLargeArraysAreReached) {
  const int64_t width = 1000, rows = kFar / width + 1, last = rows * width - 1;
  const FarArray<Bf16> x(rows * width, "x"), out(rows * width, "out");
  only_last(last);
  x.data()[last] = kThree;
  activation_forward_cuda<Bf16>(x.data(), nullptr, out.data(), {rows, width, Activation::squared_relu, false},
                                nullptr);
  EXPECT_EQ(load(out.data()[last]), 9.0F);
  activation_backward_cuda<Bf16>(x.data(), x.data(), nullptr, out.data(), nullptr,
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
  constexpr int64_t kPiece = 4 * 256 * 8;  // elements that a block handles at once
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
  const FarArray<Bf16> weight(width, "weight");
  const FarArray<float> rstd(rows, "rstd");
  weight.data()[width - 1] = store<Bf16>(1.0F);
  set_order({0, {static_cast<uint64_t>((rows - 1) % 8192)}});
  norm_forward_cuda<Bf16, Bf16>({table.data(), weight.data(), nullptr, out.data(), nullptr, rstd.data()},
                                {rows, width, 0, true}, nullptr);
  EXPECT_EQ(load(out.data()[rows * width - 1]), 256.0F);  // of a row with one number, sqrt(width) times its sign
  set_order({});
}

// The block that handles row `row` of a grid over rows.
void only_row(int64_t row) { set_order({0, {static_cast<uint64_t>(row % 8192)}}); }

TEST(FarOnHost, RowsOfLargeTablesAreMovedAndSummed) {
  const int64_t width = int64_t{1} << 16, rows = kFar / width + 1, last = rows * width - 1;
  const FarArray<Bf16> x(rows * width, "x"), out(rows * width, "out");
  const FarArray<int64_t> from(rows, "source");
  x.data()[last] = kTwo;
  from.data()[rows - 1] = rows - 1;
  only_row((rows - 1) / 8);  // a warp per row, eight of them per block
  permute_rows_cuda<Bf16>(x.data(), from.data(), out.data(), {rows, width, 1}, {}, nullptr);
  EXPECT_EQ(load(out.data()[last]), 2.0F);
  out.data()[last] = kThree;
  sum_rows_cuda<Bf16>(x.data(), from.data(), out.data(), {rows, 1, width}, nullptr);
  EXPECT_EQ(load(out.data()[last]), 2.0F);
  set_order({});
}

TEST(FarOnHost, RowsOfExpertsAreReached) {
  const int64_t width = 1024, rows = kFar / width + 1, last = rows * width - 1;
  const FarArray<Bf16> x(rows * width, "x"), out(rows * width, "out");
  const FarArray<float> probs(rows, "probs");
  const DeviceArray<int64_t> counts({rows - 1, 1}, Use::in, "counts");
  const ExpertShape shape{2, rows, width, Activation::squared_relu, false};
  x.data()[last] = kThree;
  probs.data()[rows - 1] = 2;
  only_row(rows - 1);
  expert_activation_cuda<Bf16>(x.data(), nullptr, probs.data(), counts.data(), out.data(), shape, nullptr);
  EXPECT_EQ(load(out.data()[last]), 18.0F);
  const FarArray<float> dprobs(rows, "dprobs");
  expert_activation_backward_cuda<Bf16>({x.data(), x.data(), nullptr, probs.data(), out.data(), dprobs.data()},
                                        counts.data(), shape, nullptr);
  EXPECT_EQ(load(out.data()[last]), 36.0F);   // dy p 2 x
  EXPECT_EQ(dprobs.data()[rows - 1], 27.0F);  // dy x^2
  set_order({});
}

// Rows of all operands are far apart: 8 elements per row; the last element of row 1 is nonzero.
TEST(FarOnHost, ProductsOfGroupsReachRowsThatLieFarApart) {
  const int64_t apart = kFar / 8 * 8, last = apart + 7;
  const FarArray<F16> array(2 * apart, "a"), b(2 * apart, "b"), c(2 * apart, "c");
  const FarArray<float> sum(2 * apart, "sum");
  array.data()[last] = store<F16>(3.0F), b.data()[last] = store<F16>(2.0F);
  const DeviceArray<int64_t> counts({2}, Use::in, "counts"),
      table(std::vector<int64_t>(kGroupedFields), Use::out, "table");
  const auto run = [&](const GroupedSource& source, const GroupedShape& shape) {
    grouped_arguments_cuda(counts.data(), source, table.data(), nullptr);
    grouped_product_cuda<F16>(table.data(), shape, nullptr);
  };
  const GroupedOperand of_a{array.data(), apart, 0, 2}, of_b{b.data(), apart, 8, 2}, of_c{c.data(), apart, 0, 2};
  run({of_a, of_b, of_c, 1, 2}, {GroupedOp::forward, 1, 2, 8, 2});
  EXPECT_EQ(load(c.data()[apart + 1]), 6.0F);
  array.data()[last] = {}, array.data()[apart + 1] = store<F16>(3.0F);
  run({of_a, of_b, of_c, 1, 2}, {GroupedOp::input_gradient, 1, 2, 8, 2});
  EXPECT_EQ(load(c.data()[last]), 6.0F);
  run({of_a, {b.data(), apart, 0, 2}, {sum.data(), apart, 8, 4}, 1, 2}, {GroupedOp::weight_gradient, 1, 2, 8, 2});
  EXPECT_EQ(sum.data()[last], 6.0F);
}

// The last of the lines of weight gradients is one row.
TEST(FarOnHost, NormsBehindDropoutAndTheirGradientsReachLargeArrays) {
  const int64_t width = int64_t{1} << 16, rows = 993 * 33 + 1, last = rows * width - 1;
  const NormShape norm_shape{rows, width, 0, true};
  ASSERT_GT(rows * width, kFar);
  ASSERT_EQ(norm_rows_per_line(norm_shape), 33);
  const FarArray<Bf16> raw(rows * width, "raw"), residual(rows * width, "residual"), x(rows * width, "x"),
      out(rows * width, "out"), weight(width, "weight");
  const FarArray<float> rstd(rows, "rstd"), dweight(width, "dweight"), lines(norm_lines(norm_shape) * width, "lines");
  const DropoutNormShape shape{{{nullptr, 1, 0}, rows, width, 7, 0.0}, norm_shape};
  raw.data()[last] = residual.data()[last] = store<Bf16>(1.0F);
  weight.data()[width - 2] = weight.data()[width - 1] = store<Bf16>(1.0F);
  only_row(rows - 1);
  dropout_norm_forward_cuda<Bf16, Bf16>({raw.data(), nullptr, residual.data(), x.data()},
                                        {x.data(), weight.data(), nullptr, out.data(), nullptr, rstd.data()}, shape,
                                        nullptr);
  EXPECT_EQ(load(x.data()[last]), 2.0F);
  EXPECT_EQ(load(out.data()[last]), 256.0F);  // of a row with one number, sqrt(width) times its sign
  EXPECT_EQ(rstd.data()[rows - 1], 128.0F);
  const FarArray<Bf16> dy(rows * width, "dy"), dx(rows * width, "dx"), drawn(rows * width, "drawn");
  dy.data()[last - 1] = dy.data()[last] = store<Bf16>(1.0F);
  // The last line, and the thread block that sums the last columns of all lines.
  set_order({0, {static_cast<uint64_t>(norm_lines(norm_shape) - 1), static_cast<uint64_t>(width / 8 - 1)}});
  const NormBackward<Bf16, Bf16> backward{dy.data(), x.data(),  weight.data(), nullptr, rstd.data(),
                                          nullptr,   dx.data(), lines.data(),  false};
  norm_backward_cuda<Bf16, Bf16>(backward, norm_shape, nullptr);
  sum_lines_cuda<float>({lines.data(), norm_lines(norm_shape), width, width, dweight.data()}, nullptr);
  EXPECT_EQ(load(dx.data()[last - 1]), 128.0F);  // there the normalized x is 0
  EXPECT_EQ(dweight.data()[width - 1], 256.0F);
  dx.data()[last - 1] = Bf16{};
  dropout_norm_backward_cuda<Bf16, Bf16>(backward, drawn.data(), shape, nullptr);
  EXPECT_EQ(load(dx.data()[last - 1]), 128.0F);
  EXPECT_EQ(load(drawn.data()[last - 1]), 128.0F);
  set_order({});
}

// The last line is one row.
TEST(FarOnHost, SumsOfColumnsReachTheLastRow) {
  const int64_t width = 1024, rows = kFar / width + 1, last = rows * width - 1;
  const ColumnSumsShape shape{rows, width, width};
  ASSERT_EQ(column_rows_per_line<Bf16>(shape), 4096);
  ASSERT_EQ(rows % 4096, 1);
  const FarArray<Bf16> x(rows * width, "x");
  const FarArray<float> out(width, "out"), lines(column_lines<Bf16>(shape) * width, "lines");
  x.data()[last] = kThree;
  // The last columns of the last line, and the thread block that sums the last columns of all lines.
  set_order({0, {static_cast<uint64_t>(column_lines<Bf16>(shape) * 4 - 1), static_cast<uint64_t>(width / 8 - 1)}});
  column_sums_cuda<Bf16>(out.data(), x.data(), lines.data(), shape, nullptr);
  EXPECT_EQ(out.data()[width - 1], 3.0F);
  set_order({});
}

// In the last pack, and one element after it, which the first thread handles.
TEST(FarOnHost, HalvesAreAddedToTheEndOfLargeGradients) {
  const FarArray<Bf16> x(kFar, "x");
  const FarArray<float> out(kFar, "out");
  for (const int64_t n : {kFar / 8 * 8, kFar / 8 * 8 - 7}) {
    x.data()[n - 1] = kThree;
    out.data()[n - 1] = 0.5F;
    only_last(n / 8 - 1);
    add_elements_cuda<Bf16>(out.data(), x.data(), n, true, nullptr);
    EXPECT_EQ(out.data()[n - 1], 3.5F);
  }
  set_order({});
}

TEST(FarOnHost, StepsAndSumsOfLargeRangesReachTheirEnd) {
  const int64_t last = kFar - 1;
  const FarArray<Bf16> grad(kFar, "grad"), param(kFar, "param");
  const FarArray<float> main(kFar, "main"), first(kFar, "first"), scales(kFar / 256 + 1, "scales");
  const FarArray<uint8_t> second(kFar, "second");
  grad.data()[last] = kThree;
  main.data()[last] = 1;
  const StepValues value{.steps = 1, .updates = 1, .number = 1, .grad_factor = 0.5};
  const GroupRates rate{0.125, 0.5, 0.5, 0.125, 1};
  const DeviceArray<StepValues> values({value}, Use::in, "values");
  const DeviceArray<GroupRates> rates({rate}, Use::in, "rates");
  OptimizerRange range;
  range.n = kFar;
  range.grad = grad.data(), range.grad_number = Number::bf16;
  range.main = main.data(), range.param = param.data();
  range.first = {first.data(), Number::f32, nullptr};
  range.second = {second.data(), Number::block8, scales.data()};
  Bf16 one_grad = kThree, one_param{};
  float one_main = 1, one_first = 0, one_scale = 0;
  uint8_t one_second = 0;
  OptimizerRange one = range;
  one.n = 1;
  one.grad = &one_grad, one.main = &one_main, one.param = &one_param;
  one.first.data = &one_first, one.second.data = &one_second, one.second.scales = &one_scale;
  adam_step(one, {}, {&value, &rate});
  only_last(last);
  adam_step_cuda({{range, rates.data()}}, {}, values.data(), nullptr);
  EXPECT_NE(one_main, 1);
  EXPECT_FLOAT_EQ(main.data()[last], one_main);
  EXPECT_FLOAT_EQ(first.data()[last], one_first);
  EXPECT_EQ(second.data()[last], one_second);
  EXPECT_EQ(scales.data()[last / 256], one_scale);
  EXPECT_EQ(param.data()[last].bits, one_param.bits);

  // Without blocks of scales a thread handles 8 elements at once.
  range.second = {};
  main.data()[last] = one_main = 1, first.data()[last] = one_first = 0;
  lion_step(one, {}, {&value, &rate});
  only_last(last / 8);
  lion_step_cuda({{range, rates.data()}}, {}, values.data(), nullptr);
  EXPECT_NE(one_main, 1);
  EXPECT_FLOAT_EQ(main.data()[last], one_main);
  EXPECT_FLOAT_EQ(first.data()[last], one_first);
  EXPECT_EQ(param.data()[last].bits, one_param.bits);

  const FarArray<GradientSums> workspace(gradient_sums_blocks(kFar), "workspace");
  const DeviceArray<double> sums(std::vector<double>(3), Use::both, "sums");
  ASSERT_EQ((gradient_sums_blocks(kFar) - 1) % 8192, 0);  // the one block of the total also handles the last part
  only_row(0);
  gradient_sums_cuda({{grad.data(), Number::bf16, kFar}},
                     {reinterpret_cast<GradientSums*>(sums.data()), workspace.data()}, nullptr);
  EXPECT_EQ(sums.data()[0], 9.0);
  set_order({});
}

// The last element of the last of two shards, both larger than 2^31 elements, and its block of sums.
TEST(FarOnHost, LargeShardsAreSummedToTheirEnd) {
  const int64_t blocks = gradient_sums_blocks(kFar);
  const FarArray<Bf16> received(2 * kFar, "received"), out(kFar, "out");
  const FarArray<GradientSums> sums(blocks, "sums");
  received.data()[kFar - 1] = kTwo, received.data()[2 * kFar - 1] = kThree;
  only_row((blocks - 1) % 8192);
  sum_shards_cuda({{0, kFar, out.data(), sums.data()}}, {received.data(), Number::bf16, 2, kFar, false}, nullptr);
  EXPECT_EQ(load(out.data()[kFar - 1]), 5.0F);
  EXPECT_EQ(sums.data()[blocks - 1].sum_of_squares, 25.0);
  set_order({});
}

}  // namespace
}  // namespace metroplex::kernels_on_host::far_test
