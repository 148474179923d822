// Memory traffic of each kernel, counted per access: the table of docs/kernels.md. It must contain every kernel that
// a .cu file launches.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "kernels/accumulate.h"
#include "kernels/activation.h"
#include "kernels/balance.h"
#include "kernels/random_rows.h"
#include "kernels/route.h"
#include "kernels/shard_codes.h"
#include "kernels/sinkhorn.h"
#include "kernels/attention_scores.h"
#include "kernels/block8.h"
#include "kernels/column_sums.h"
#include "kernels/cross_entropy.h"
#include "kernels/dropout_norm.h"
#include "kernels/echo_plan.h"
#include "kernels/embedding.h"
#include "kernels/encode_matrix.h"
#include "kernels/expert_rows.h"
#include "kernels/grouped_product.h"
#include "kernels/heads.h"
#include "kernels/optimizer_step.h"
#include "kernels/pages.h"
#include "kernels/permutation.h"
#include "kernels/rope.h"
#include "kernels/round_blocks.h"
#include "kernels/row_codes.h"
#include "kernels/rounding_errors.h"
#include "kernels/step_state.h"
#include "kernels/weight_codes.h"
#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host::traffic_test {
namespace {

constexpr int64_t kRows = 64, kWidth = 256, kCount = kRows * kWidth, kExperts = 8;
constexpr int64_t kAssignments = 2048;  // two tiles of plan_permutation

struct Buffers {
  DeviceArray<Bf16> x{make_values<Bf16>(2 * kCount, 0.7), Use::both, "x"},
      y{make_values<Bf16>(2 * kCount, 0.3), Use::both, "y"}, z{make_values<Bf16>(2 * kCount, 0.2), Use::both, "z"},
      half_row{make_values<Bf16>(kWidth, 0.2), Use::both, "half_row"},
      half_more{make_values<Bf16>(kWidth, 0.5), Use::both, "half_more"};
  DeviceArray<float> f{make_values<float>(kCount, 0.7), Use::both, "f"},
      g{make_values<float>(kCount, 0.3), Use::both, "g"}, row{make_values<float>(kWidth, 0.2), Use::both, "row"},
      more{make_values<float>(kWidth, 0.5), Use::both, "more"},
      mean{make_values<float>(kWidth, 0.1), Use::both, "mean"},
      rstd{make_values<float>(kWidth, 0.4), Use::both, "rstd"};
  DeviceArray<double> d{std::vector<double>(kCount, 1.0), Use::both, "d"};
  DeviceArray<int64_t> i{std::vector<int64_t>(kCount, 1), Use::both, "i"},
      j{std::vector<int64_t>(kCount, 1), Use::both, "j"}, k{std::vector<int64_t>(kCount, 1), Use::both, "k"},
      zero{std::vector<int64_t>(kCount, 0), Use::both, "zero"},
      eight{std::vector<int64_t>(kExperts, 8), Use::both, "eight"};
  DeviceArray<uint8_t> codes{std::vector<uint8_t>(kCount), Use::both, "codes"};
  DeviceArray<uint16_t> halves{std::vector<uint16_t>(kCount), Use::both, "halves"},
      others{std::vector<uint16_t>(kCount), Use::both, "others"};
};

void run_column_sums(const Buffers& buffer) {
  column_sums_cuda<Bf16>(buffer.more.data(), buffer.x.data(), buffer.f.data(), {kRows, kWidth, kWidth}, nullptr);
}

BalanceShape balance_shape() { return {kRows, kExperts, 1, BalanceScore::softmax, true, 2, kRows}; }

void run_balance(const Buffers& buffer) {
  balance_forward_cuda<float>({buffer.g.data(), buffer.i.data(), buffer.f.data()}, buffer.d.data(),
                              buffer.d.data() + 1000, balance_shape(), nullptr);
}

void run_permutation(const Buffers& buffer) {
  plan_permutation_cuda(buffer.zero.data(), {buffer.i.data(), buffer.j.data(), buffer.k.data()},
                        {kAssignments, kAssignments, 0, 1, 1}, nullptr);
}

void run_gradient_sums(const Buffers& buffer) {
  gradient_sums_cuda(
      {{buffer.x.data(), Number::bf16, kCount}},
      {reinterpret_cast<GradientSums*>(buffer.d.data()), reinterpret_cast<GradientSums*>(buffer.d.data()) + 1},
      nullptr);
}

// 2 query heads, a key head and a value head of 64.
HeadRegions<Bf16> make_fused_heads(const Buffers& buffer) {
  HeadRegions<Bf16> heads;
  for (size_t which = 0; which < 3; ++which) {
    const int64_t of = which == 0 ? 2 : 1;
    heads.regions[which] = {buffer.y.data() + 64 * kRows * (which == 0 ? 0 : which + 1), of, of * 64, of * 64, 64};
    if (which < 2) heads.regions[which].cos = buffer.f.data(), heads.regions[which].sin = buffer.g.data();
  }
  return heads;
}

void run_layers(const Buffers& buffer) {
  const ActivationShape gelu{kRows, kWidth, Activation::gelu, false};
  activation_forward_cuda<Bf16>(buffer.x.data(), buffer.half_row.data(), buffer.y.data(), gelu, nullptr);
  activation_backward_cuda<Bf16>(buffer.y.data(), buffer.x.data(), buffer.half_row.data(), buffer.z.data(),
                                 buffer.f.data(), gelu, nullptr);
  run_column_sums(buffer);
  add_elements_cuda<Bf16>(buffer.f.data(), buffer.x.data(), kCount, true, nullptr);
  rope_cuda<Bf16>(buffer.x.data(), buffer.f.data(), buffer.g.data(), 1, {16, 1, 8, 128, 1024, 1024, 128}, nullptr);
  HeadRegions<Bf16> heads = make_fused_heads(buffer);
  const HeadsShape fused{kRows, 1, 1, 64, 64};
  split_heads_cuda<Bf16>(buffer.x.data(), heads, fused, nullptr);
  join_heads_cuda<Bf16>(buffer.x.data(), heads, fused, nullptr);
  for (const size_t which : {0, 1}) {
    float* const statistics = buffer.f.data() + 4096 * (which + 1);
    heads.regions[which].norm = {buffer.half_row.data(), 1e-5, false, statistics, statistics + 2048};
  }
  split_heads_cuda<Bf16>(buffer.x.data(), heads, fused, nullptr);
  heads.raw = buffer.z.data();
  join_heads_cuda<Bf16>(buffer.x.data(), heads, fused, nullptr);
  const LogitsShape logits{kRows, kWidth, kWidth};
  cross_entropy_statistics_cuda<Bf16>(buffer.x.data(), buffer.i.data(),
                                      {buffer.mean.data(), buffer.rstd.data(), buffer.more.data(), nullptr}, logits,
                                      nullptr);
  cross_entropy_backward_cuda<Bf16>(buffer.x.data(), buffer.i.data(), {buffer.mean.data(), buffer.rstd.data(), 1, 0},
                                    logits, nullptr);
  gather_rows_cuda<Bf16>(buffer.x.data(), buffer.i.data(), buffer.y.data(), false, {kRows, kWidth, kRows}, nullptr);
  scatter_add_rows_cuda<Bf16, Bf16>(buffer.x.data(), {buffer.i.data(), buffer.zero.data()}, buffer.y.data(),
                                    {kRows, kWidth, kRows}, nullptr);
  const DropoutShape dropout{{buffer.zero.data(), 1, 0}, kRows, kWidth, 7, 0.1};
  bias_dropout_add_cuda<Bf16, Bf16>({buffer.x.data(), buffer.half_row.data(), buffer.y.data(), buffer.z.data()},
                                    dropout, nullptr);
  const NormShape norm{kRows, kWidth, 1e-5, false};
  const NormBackward<Bf16, Bf16> backward{buffer.y.data(),    buffer.x.data(),    buffer.half_row.data(),
                                          buffer.mean.data(), buffer.rstd.data(), nullptr,
                                          buffer.z.data(),    buffer.f.data(),    true};
  const NormForward<Bf16, Bf16> forward{buffer.x.data(), buffer.half_row.data(), buffer.half_more.data(),
                                        buffer.y.data(), buffer.mean.data(),     buffer.rstd.data()};
  norm_forward_cuda<Bf16, Bf16>(forward, norm, nullptr);
  norm_backward_cuda<Bf16, Bf16>(backward, norm, nullptr);
  dropout_norm_forward_cuda<Bf16, Bf16>({buffer.z.data(), buffer.half_row.data(), buffer.y.data(), buffer.x.data()},
                                        forward, {dropout, norm}, nullptr);
  dropout_norm_backward_cuda<Bf16, Bf16>(backward, buffer.x.data() + kCount, {dropout, norm}, nullptr);
}

// Scores of 64 positions of 4 heads of 64, with documents and dropout.
void run_attention(const Buffers& buffer) {
  constexpr int64_t kHeads = 4, kDim = 64;
  AttentionShape shape;
  shape.samples = 1, shape.heads = shape.groups = kHeads, shape.queries = shape.keys = kRows;
  shape.head_dim = shape.v_head_dim = kDim, shape.softmax_scale = 0.125;
  shape.documents = buffer.zero.data(), shape.document_stride = kRows;
  shape.dropout = {{buffer.zero.data(), 1, 0, true, nullptr, kRows, kRows}, kHeads * kRows, kRows, 7, 0.1};
  const ScoreBlock block{0, kHeads, 0, kRows, 0, kRows, kRows};
  const auto of = [](const Bf16* data) { return AttentionOperand<const Bf16>{data, kHeads * kDim, 0, kDim}; };
  const auto numbers = static_cast<size_t>(block.rows() * kRows);
  const DeviceArray<float> scores(std::vector<float>(numbers), Use::in, "scores");
  const DeviceArray<Bf16> gradients(std::vector<Bf16>(numbers), Use::out, "gradients");
  attention_softmax_cuda<Bf16>({scores.data(), buffer.z.data(), buffer.f.data()}, shape, block, nullptr);
  attention_softmax_backward_cuda<Bf16>({scores.data(), scores.data(), buffer.f.data(), of(buffer.x.data()),
                                         of(buffer.y.data()), buffer.z.data(), gradients.data()},
                                        shape, block, nullptr);
}

void run_router(const Buffers& buffer) {
  random_rows_cuda<float>(buffer.f.data(), Noise::gumbel, {{buffer.zero.data(), 1, 0}, kRows, kWidth, 7}, nullptr);
  sinkhorn_cuda<float>(buffer.g.data(), buffer.f.data(), buffer.row.data(), {kRows, kExperts}, nullptr);
  const RouteShape route{kRows, kExperts, 2};
  route_forward_cuda<float>({buffer.g.data(), nullptr, buffer.i.data(), buffer.f.data()}, route, nullptr);
  route_backward_cuda<float>({buffer.f.data(), buffer.g.data(), buffer.i.data(), buffer.f.data() + kRows * 2}, route,
                             nullptr);
  run_balance(buffer);
  balance_term_cuda(buffer.d.data(), buffer.d.data() + 500, buffer.d.data() + 501, buffer.d.data() + 502,
                    {BalanceTerm::Kind::aux, 1, kExperts, 0.01, 1}, nullptr);
  balance_backward_cuda<float>(buffer.g.data(), buffer.d.data(), buffer.d.data() + 500, buffer.f.data(),
                               balance_shape(), nullptr);
}

void run_experts(const Buffers& buffer) {
  const ExpertShape shape{kExperts, kRows, kWidth, Activation::silu, true};
  expert_activation_cuda<Bf16>(buffer.x.data(), nullptr, buffer.row.data(), buffer.eight.data(), buffer.y.data(),
                               shape, nullptr);
  const ExpertActivationGradient<Bf16> gradient{buffer.y.data(),   buffer.x.data(), nullptr,
                                                buffer.row.data(), buffer.z.data(), buffer.more.data()};
  expert_activation_backward_cuda<Bf16>(gradient, buffer.eight.data(), shape, nullptr);
  expert_bias_cuda<Bf16>(buffer.y.data(), buffer.x.data(), buffer.row.data(), buffer.eight.data(), shape, nullptr);
  expert_bias_probs_cuda<Bf16>(buffer.y.data(), buffer.x.data(), buffer.eight.data(), buffer.more.data(), shape,
                               nullptr);
  expert_sums_cuda<Bf16>(buffer.y.data(), buffer.row.data(), buffer.eight.data(), buffer.f.data(), shape, nullptr);
  expert_scale_cuda<Bf16>(buffer.x.data(), buffer.row.data(), buffer.eight.data(), buffer.y.data(), shape, nullptr);
  expert_scale_backward_cuda<Bf16>(gradient, buffer.eight.data(), shape, nullptr);
  run_permutation(buffer);
  permute_rows_cuda<Bf16>(buffer.x.data(), buffer.j.data(), buffer.y.data(), {kRows, kWidth, 1},
                          {buffer.f.data(), buffer.g.data(), 4}, nullptr);
  sum_rows_cuda<Bf16>(buffer.x.data(), buffer.i.data(), buffer.y.data(), {kRows / 2, 2, kWidth}, nullptr);
  plan_regroup_cuda(buffer.eight.data(), {buffer.i.data(), buffer.j.data(), buffer.k.data()},
                    {2, kExperts / 2, 0, kRows, kRows}, nullptr);
  const GroupedSource source{{buffer.x.data(), kWidth, 0, 2},
                             {buffer.y.data(), kWidth, 0, 2},
                             {buffer.z.data(), kRows, 0, 2},
                             kExperts,
                             kRows};
  const DeviceArray<int32_t> ends(std::vector<int32_t>(kExperts), Use::out, "ends");
  group_ends_cuda(buffer.eight.data(), kExperts, kRows, ends.data(), nullptr);
  grouped_arguments_cuda(buffer.eight.data(), source, buffer.i.data(), nullptr);
  grouped_product_cuda<Bf16>(buffer.i.data(), {GroupedOp::forward, kExperts, kRows, kWidth, kRows}, nullptr);
}

void run_replicas(const Buffers& r) {
  EchoPlanShape shape;
  shape.sizes = {4, kExperts, 1};
  std::vector<int64_t> counts(4 * kExperts, 8);
  for (size_t i = 0; i < counts.size(); i += kExperts) counts[i] = 100;  // expert 0 is hot
  const DeviceArray<int64_t> given(counts, Use::in, "counts");
  const auto buffer = [](int64_t n, const char* name) {
    return DeviceArray<int32_t>(std::vector<int32_t>(static_cast<size_t>(n)), Use::both, name);
  };
  const DeviceArray<int32_t> owner = buffer(4, "owner"), first = buffer(kExperts, "first"), next = buffer(4, "next"),
                             narrow = buffer(echo_plan_narrow_scratch(shape.sizes), "narrow_scratch");
  echo_plan_cuda(given.data(),
                 {owner.data(), first.data(), next.data(), r.i.data(), r.i.data() + 100, r.i.data() + 200, r.j.data(),
                  narrow.data()},
                 shape, nullptr);
  echo_columns_cuda({r.zero.data(), r.k.data(), r.zero.data(), first.data(), next.data(), r.i.data(), r.j.data()},
                    {shape.sizes, kRows}, nullptr);
}

void run_pages(const Buffers& buffer) {
  const PageShape shape{8, 0, 16};
  const DeviceArray<int32_t> state(std::vector<int32_t>(kPageWords + 8), Use::both, "state"),
      lease(std::vector<int32_t>(kLeaseWords + 4), Use::both, "lease"), flag({0}, Use::both, "flag");
  const DeviceArray<uint8_t> pool(std::vector<uint8_t>(8 * 16 * 2 * kWidth), Use::both, "pool");
  const PagedRows pages{lease.data(), pool.data(), nullptr, kRows, 2 * kWidth, 0, 16 * 2 * kWidth};
  take_pages_cuda({buffer.eight.data(), kExperts, kRows, 1, state.data(), lease.data(), flag.data()}, shape, nullptr);
  rows_to_pages_cuda(buffer.x.data(), pages, shape, nullptr);
  rows_from_pages_cuda(pages, buffer.y.data(), shape, nullptr);
  give_pages_cuda(lease.data(), state.data(), shape, nullptr);
}

void run_optimizer(const Buffers& buffer) {
  const DeviceArray<StepValues> values({StepValues{.updates = 1}}, Use::both, "values");
  const DeviceArray<GroupRates> rates({GroupRates{}}, Use::both, "rates");
  const StepPlace place{values.data(), rates.data()};
  OptimizerRange range;
  range.n = kCount / 4;
  range.grad = buffer.x.data();
  range.grad_number = Number::bf16;
  range.main = buffer.f.data();
  range.param = buffer.y.data();
  range.first.data = buffer.g.data();
  range.second.data = buffer.g.data() + kCount / 2;
  adam_step_cuda({{range, place.rates}}, {}, place.values, nullptr);
  sgd_step_cuda({{range, place.rates}}, {0.9}, place.values, nullptr);
  lion_step_cuda({{range, place.rates}}, {}, place.values, nullptr);
  run_gradient_sums(buffer);
  sum_shards_cuda({{0, kCount, buffer.y.data(), reinterpret_cast<GradientSums*>(buffer.d.data())}},
                  {buffer.x.data(), Number::bf16, 2, kCount, false}, nullptr);
  block8_encode_cuda(buffer.f.data(), kCount, true, buffer.codes.data(), buffer.g.data(), nullptr);
  block8_decode_cuda(buffer.codes.data(), buffer.g.data(), kCount, true, buffer.f.data(), nullptr);
  split_floats_cuda(buffer.f.data(), kCount, buffer.halves.data(), buffer.others.data(), nullptr);
  join_floats_cuda(buffer.halves.data(), buffer.others.data(), kCount, buffer.f.data(), nullptr);
  copy_if_updates_cuda(values.data(), true, buffer.f.data(), buffer.g.data(), kCount, nullptr);
  loss_factors_cuda(values.data(), buffer.d.data(), buffer.d.data() + 100, {8, 1, false}, nullptr);
  const DeviceArray<StepSums> sums({StepSums{}}, Use::both, "sums");
  const DeviceArray<StepVerdict> verdict({StepVerdict{}}, Use::both, "verdict");
  const DeviceArray<int32_t> flags({0}, Use::in, "flags");
  own_sums_cuda({.stop = buffer.d.data(), .flags = flags.data()}, {sums.data(), nullptr, 0, nullptr}, nullptr);
  judge_step_cuda({}, {values.data(), rates.data(), buffer.d.data(), sums.data(), buffer.d.data(), verdict.data()},
                  nullptr);
}

void run_rounding(const Buffers& buffer) {
  const RoundShape shape{kRows, kWidth, 1, 1, 32, SmallNumber::e4m3, BlockFactor::power_of_two};
  largest_magnitudes_cuda<Bf16>(buffer.g.data(), buffer.g.data() + kWidth, buffer.x.data(), nullptr, shape, nullptr);
  round_blocks_cuda<Bf16, float>(buffer.f.data(), buffer.x.data(), nullptr, nullptr, shape, {}, nullptr, nullptr);
  encode_values_cuda<Bf16>({buffer.codes.data(), buffer.g.data()}, buffer.x.data(), nullptr, nullptr, shape, {},
                           nullptr);
  encode_values_cuda<Bf16>({buffer.codes.data(), buffer.g.data(), buffer.codes.data() + kCount / 2}, buffer.x.data(),
                           buffer.row.data(), nullptr,
                           {kRows, kWidth, 1, 1, 16, SmallNumber::e2m1, BlockFactor::e4m3}, {}, nullptr);
  encode_matrix_cuda<Bf16>({buffer.codes.data(), buffer.g.data(), reinterpret_cast<uint8_t*>(buffer.halves.data()),
                            buffer.f.data(), buffer.row.data()},
                           buffer.more.data(), buffer.x.data(), nullptr,
                           {kRows, kWidth, 32, false, SmallNumber::e4m3, BlockFactor::power_of_two}, nullptr);
  transpose_codes_cuda(reinterpret_cast<uint8_t*>(buffer.others.data()), buffer.codes.data(), kRows, kWidth, false,
                       nullptr);
  const ShardShape shard{
      .size = kRows * kWidth, .rows = kRows, .columns = kWidth, .block_rows = 32, .block_columns = 32};
  shard_magnitudes_cuda<Bf16>(buffer.g.data(), buffer.x.data(), shard, nullptr);
  encode_shard_cuda<Bf16>(buffer.codes.data(), buffer.f.data(), buffer.x.data(), buffer.g.data(), shard, nullptr);
  rotate_rows_cuda<Bf16>(buffer.y.data(), buffer.x.data(), nullptr, shape, nullptr);
  RoundingFigures* const figures = reinterpret_cast<RoundingFigures*>(buffer.d.data());
  rounding_errors_cuda<Bf16>(figures, figures + 1, {buffer.x.data(), buffer.f.data(), nullptr, nullptr, shape},
                             nullptr);
}

void run_weight_codes(const Buffers& buffer) {
  const CodesShape shape{1, kRows, kWidth};
  const E2m1Codes e2m1{buffer.codes.data(), buffer.codes.data() + kCount / 2, buffer.g.data()};
  encode_e4m3_cuda<Bf16>(buffer.codes.data(), buffer.g.data(), buffer.x.data(), shape, nullptr);
  decode_e4m3_cuda<Bf16>(buffer.y.data(), buffer.codes.data(), buffer.g.data(), shape, nullptr);
  encode_e2m1_cuda<Bf16>(e2m1, buffer.x.data(), buffer.row.data(), shape, nullptr);
  decode_e2m1_cuda<Bf16>(buffer.y.data(), e2m1, shape, nullptr);
}

void run_row_codes(const Buffers& buffer) {
  const RowCodesShape shape{kRows / 2, kWidth};  // the codes of a row and their scales
  encode_rows_cuda<Bf16>(buffer.codes.data(), buffer.x.data(), shape, nullptr);
  decode_rows_cuda<Bf16>(buffer.y.data(), buffer.codes.data(), shape, nullptr);
}

std::set<std::string> find_launches() {
  std::set<std::string> names;
  const std::filesystem::path folder = METROPLEX_SOURCE_DIR "/metroplex/core/kernels";
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() != ".cu") continue;
    std::ifstream in(file.path());
    for (std::string line; std::getline(in, line);) {
      const size_t begin = line.find('"') + 1, end = line.find('"', begin);
      if (begin == 0 || line.find("#include") != std::string::npos || line.find("MPX_CHECK") != std::string::npos)
        continue;
      const std::string name = line.substr(begin, end - begin);
      if (name.find(' ') == std::string::npos) names.insert(name);
    }
  }
  return names;
}

std::string share(uint64_t part, uint64_t all) {
  return all == 0 ? "0" : std::to_string((200 * part + all) / (2 * all));
}

TEST(TrafficOnHost, TheTableOfTheDocsIsWhatTheKernelsMove) {
  const Buffers buffer;
  set_order({});
  traffic().clear();
  run_layers(buffer);
  run_attention(buffer);
  run_router(buffer);
  run_experts(buffer);
  run_pages(buffer);
  run_replicas(buffer);
  run_optimizer(buffer);
  run_rounding(buffer);
  run_weight_codes(buffer);
  run_row_codes(buffer);
  if (!watches()) return;
  for (const std::string& name : find_launches())
    EXPECT_TRUE(traffic().contains(name)) << name << " was not launched";
  std::string table;
  for (const auto& [name, moved] : traffic()) {
    table += "| " + name + " | " + std::to_string(moved.bytes) + " | " + share(moved.in_8, moved.bytes) + " | " +
             share(moved.in_16, moved.bytes) + " |\n";
  }
  std::ifstream in(METROPLEX_SOURCE_DIR "/docs/kernels.md");
  std::stringstream docs;
  docs << in.rdbuf();
  EXPECT_NE(docs.str().find(table), std::string::npos) << "docs/kernels.md must hold\n" << table;
}

// The pass that writes a gradient also sums it, and writes only lines. column_sums would read the gradient.
TEST(TrafficOnHost, SumsOfWrittenGradientsMoveOnlyTheirLines) {
  const Buffers buffer;
  set_order({});
  if (!watches()) return;
  const auto bytes = [](const char* name, const auto& run) {
    traffic().clear();
    run();
    return static_cast<int64_t>(traffic().at(name).bytes);
  };
  const auto norm = [&](bool with_dx) {
    return bytes("norm_backward", [&] {
      const NormShape shape{kRows, kWidth, 1e-5, false};
      norm_backward_cuda<Bf16, Bf16>({buffer.y.data(), buffer.x.data(), buffer.half_row.data(), buffer.mean.data(),
                                      buffer.rstd.data(), nullptr, buffer.z.data(), buffer.f.data(), true, with_dx},
                                     shape, nullptr);
    });
  };
  constexpr int64_t kOfFloats = sizeof(float);
  EXPECT_EQ(norm(true) - norm(false), norm_lines({kRows, kWidth}) * kWidth * kOfFloats);
  const HeadsShape shape{kRows, 1, 1, 64, 64};
  const ColumnSumsShape sums{kRows, kWidth, kWidth};
  const auto heads = [&](bool rotates, bool with_sums) {
    return bytes("join_heads", [&] {
      HeadRegions<Bf16> all = make_fused_heads(buffer);
      for (HeadRegion<Bf16>& region : all.regions)
        if (!rotates) region.cos = region.sin = nullptr;
      if (with_sums) all.sums = buffer.f.data() + kCount / 2;
      join_heads_cuda<Bf16>(buffer.x.data(), all, shape, nullptr);
    });
  };
  const int64_t lines = column_lines<Bf16>(sums) * kWidth * kOfFloats;
  EXPECT_EQ(heads(false, true) - heads(false, false), lines);
  // Threads of both elements of a pair read both, of 3 of 4 heads, and both angles in fp32 instead of one thread.
  constexpr int64_t kRotated = kCount / 4 * 3;
  EXPECT_EQ(heads(true, true) - heads(true, false), lines + kRotated * (int64_t{sizeof(Bf16)} + kOfFloats));
}

// forecast/step_budget.cpp counts the launches of these operators.
TEST(TrafficOnHost, SomeOperatorsLaunchSeveralKernels) {
  const Buffers buffer;
  set_order({});
  if (!watches()) return;
  using Names = std::set<std::string>;
  const auto launched = [](const auto& run) {
    traffic().clear();
    run();
    Names names;
    for (const auto& [name, moved] : traffic()) names.insert(name);
    return names;
  };
  EXPECT_EQ(launched([&] { run_column_sums(buffer); }), (Names{"column_sums", "sum_lines"}));
  EXPECT_EQ(launched([&] { run_balance(buffer); }), (Names{"balance_lines", "balance_sums"}));
  EXPECT_EQ(launched([&] { run_permutation(buffer); }),
            (Names{"count_assignments", "plan_permutation", "sum_tiles"}));
  EXPECT_EQ(launched([&] { run_gradient_sums(buffer); }), (Names{"gradient_sums", "gradient_sums_total"}));
}

}  // namespace
}  // namespace metroplex::kernels_on_host::traffic_test
